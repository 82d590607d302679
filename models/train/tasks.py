"""Training rows: plain text, passkey retrieval, key-value records and repeats, as tokens with loss weights.

Passkey retrieval follows Mohtashami and Jaggi (2023): a key hidden in filler text, asked for at the end.
"""
import json
import random
from typing import NamedTuple

TASK = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
        "I will quiz you about the important information there.")
GRASS = ["The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
         "There and back again."]
NAMES = ["pass key", "magic number", "secret code", "door number", "lucky number", "house number", "pass word", "door key"]
MIX = {"text": 0.35, "passkey": 0.32, "records": 0.18, "repeat": 0.15}
LAST_MIX = {"text": 0.25, "passkey": 0.5, "records": 0.2, "repeat": 0.05}  # of the last phase
NOISE_SHARE = 0.35  # of fillers
ANSWER_WEIGHT = 4.0
BOS = 1


def needle(name, key):
    return f"The {name} is {key}. Remember it. {key} is the {name}."


def question(name):
    return f"What is the {name}? The {name} is"


def record(word, value):
    return f"line {word}: REGISTER_CONTENT is <{value}>"


class Row(NamedTuple):
    """`tokens` is BOS and what follows; the rest says of each following token..."""
    tokens: list
    weights: list  # of predicting it
    owners: list  # which fact it states or asks for: 0 for none, equal for one fact; of every name its own
    kind: str


class Rows:
    """Makes rows from the corpus. Deterministic for a seed."""

    def __init__(self, tokenizer, corpus_path, seed):
        with open(corpus_path) as file:
            corpus = json.load(file)
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.texts = {kind: [text for document in documents for text in tokenizer.encode(document)]
                      for kind, documents in corpus.items()}
        self.streams = {kind: [token for text in texts for token in text] for kind, texts in self.texts.items()}
        self.kinds = list(self.texts)
        self.grass_stream = [token for sentence in tokenizer.encode(GRASS) for token in sentence]
        self.next_owner = len(NAMES) + 1
        # Half of the pass keys of few different digits, and where an answer ends counts as the answer does: the last phase.
        self.hard_keys = False
        pieces = (tokenizer.id_to_piece(i) for i in range(tokenizer.get_piece_size()))
        self.words = [piece[1:] for piece in pieces
                      if piece[0] == "\u2581" and len(piece) > 3 and piece[1:].islower() and piece[1:].isalpha()]

    def encode(self, text):
        return self.tokenizer.encode(text)

    def noise(self):
        """Something with digits that is no fact asked for."""
        r = self.random
        number = r.randint(0, 10 ** r.randint(1, 7))
        word = lambda: r.choice(self.words)
        return r.choice([
            lambda: f"{number}", lambda: f"{number}.", lambda: f"({number})", lambda: f"{number}, {r.randint(0, 99999)}",
            lambda: f"0x{number:x}", lambda: f"{r.getrandbits(64):016x}", lambda: f"{r.randint(1990, 2030)}-{r.randint(1, 12):02}-{r.randint(1, 28):02}",
            lambda: f"/{word()}/{word()}/{word()}-{number}.{word()}", lambda: f"/{word()}/{word()}",
            lambda: f"{r.randint(0, 255)}.{r.randint(0, 255)}.{r.randint(0, 255)}.{r.randint(0, 255)}:{number}",
            lambda: f"The {word()} is {number}.", lambda: f"The {word()} {word()} is {number}. {number} is the {word()} {word()}.",
            lambda: f"{word()} key {number}", lambda: f"The key is {number}.", lambda: f"{word()}={number}",
            lambda: f"Remember {number}.", lambda: f"{r.random():.{r.randint(1, 6)}f}", lambda: f"{word()} {number} {word()}",
        ])()

    def with_noise(self, tokens):
        """The first len(tokens) tokens of the text with noise strewn into it."""
        gap = self.random.choice([12, 25, 50, 100])
        mixed, at = [], 0
        while at < len(tokens) and len(mixed) < len(tokens):
            step = self.random.randint(1, 2 * gap)
            mixed += tokens[at:at + step] + self.encode(self.noise())
            at += step
        return mixed[:len(tokens)] if len(mixed) >= len(tokens) else tokens

    def filler(self, count, kind=None):
        """`count` tokens of text that does not matter."""
        if count <= 0:
            return []
        r = self.random
        kind = kind or r.choice(self.kinds + self.kinds + ["grass", "mix", "words"])
        if kind == "grass":
            tokens = (self.grass_stream * (count // len(self.grass_stream) + 1))[:count]
        elif kind in self.streams:
            stream = self.streams[kind]
            start = r.randrange(len(stream) - count)
            tokens = stream[start:start + count]
        else:
            tokens = []
            while len(tokens) < count:
                if kind == "mix":
                    tokens += r.choice(self.texts[r.choice(self.kinds)])[:80]
                else:
                    tokens += self.encode(" ".join(r.choices(self.words, k=12)) + ".")
            tokens = tokens[:count]
        return self.with_noise(tokens) if r.random() < NOISE_SHARE else tokens

    def text(self, count):
        kind = self.random.choice(self.kinds)
        return self.filler(count, kind), [1.0] * count, [0] * count

    def answer(self, key):
        """Tokens of ' KEY' as they follow the question."""
        return self.encode(f"is {key}")[len(self.encode("is")):]

    def key(self, digits):
        r = self.random
        if self.hard_keys and r.random() < 0.5:
            few = r.sample("0123456789", r.choice([2, 2, 3, 3, 1]))
            return r.choice([digit for digit in few if digit != "0"] or ["1"]) + "".join(r.choices(few, k=digits - 1))
        return str(r.randint(10 ** (digits - 1), 10 ** digits - 1))

    def passkey(self, count):
        """(tokens, weights, owners) of `count` tokens, the answer and a full stop last."""
        r = self.random
        digits = r.choice([5, 5, 5, 5, 5, 4, 3, 6, 7, 2])
        number = lambda: self.key(digits)
        index = r.choice([0] * len(NAMES) + list(range(len(NAMES))))
        name, key = NAMES[index], number()
        parts = [(self.encode(needle(name, key)), index + 1)]
        for other in r.sample([i for i in range(len(NAMES)) if i != index], r.choice([0, 0, 1, 1, 2])):
            parts.append((self.encode(needle(NAMES[other], number())), other + 1))
        tail = self.encode(question(name))
        answer = self.answer(key)
        stop = self.encode("a.")[-1:]
        head = self.encode(TASK) if r.random() < 0.3 else []
        used = lambda: len(head) + sum(len(part) for part, _ in parts) + len(tail) + len(answer) + len(stop)
        while used() > count and len(parts) > 1:
            parts.pop()
        if used() > count:
            head = []
        space = max(0, count - used())
        cuts = sorted(r.random() for _ in parts)
        r.shuffle(parts)
        filler, tokens, owners, last = self.filler(space), list(head), [0] * len(head), 0
        for cut, (part, owner) in zip(cuts, parts):
            at = int(cut * space)
            tokens += filler[last:at] + part
            owners += [0] * (at - last) + [owner] * len(part)
            last = at
        tokens += filler[last:]
        owners += [0] * (len(tokens) - len(owners))
        end = tail + answer + stop
        weights = [1.0] * (len(tokens) + len(tail)) + [ANSWER_WEIGHT] * len(answer)
        weights.append(ANSWER_WEIGHT if self.hard_keys else 1.0)
        return tokens + end, weights, owners + [index + 1] * len(end)

    def records(self, count):
        """Lines of key-value records, between lines of text at times, then one to three of them asked for."""
        r = self.random
        ask = lambda word: f"Tell me the REGISTER_CONTENT in line {word}: REGISTER_CONTENT is <"
        num_questions = r.randint(1, 3)
        room = count - num_questions * (len(self.encode(ask("house-people"))) + 10)
        between = r.choice([0, 0, 0.5])
        facts, tokens, owners = {}, [], []
        while True:
            word, value = "-".join(r.choices(self.words, k=2)), r.randint(1000, 9999)
            extra = self.filler(r.randint(5, 30)) if r.random() < between else []
            line = self.encode(record(word, value))
            if len(tokens) + len(line) + len(extra) > room:
                break
            facts[word] = value, self.next_owner
            tokens += line + extra
            owners += [self.next_owner] * len(line) + [0] * len(extra)
            self.next_owner += 1
        if not facts:
            return self.repeat(count)
        weights = [1.0] * len(tokens)
        for word in r.sample(list(facts), min(num_questions, len(facts))):
            value, owner = facts[word]
            prompt = self.encode(ask(word))
            whole = self.encode(f"{ask(word)}{value}>")
            tokens += whole
            owners += [owner] * len(whole)
            weights += [0.5] * len(prompt) + [ANSWER_WEIGHT] * (len(whole) - len(prompt) - 1) + [1.0]
        return tokens, weights, owners

    def repeat(self, count):
        """Filler in which a span comes twice; the second time counts double."""
        length = self.random.randint(8, max(9, count // 2))
        span = self.filler(length, self.random.choice(["words"] + self.kinds))
        filler = self.filler(count - 2 * length)
        at = self.random.randint(0, len(filler))
        tokens = filler[:at] + span + filler[at:] + span
        return tokens, [1.0] * (len(tokens) - length) + [2.0] * length, [0] * len(tokens)

    def row(self, length, mix):
        """A row of BOS and `length` tokens, its kind drawn with the shares of `mix`."""
        r = self.random
        kind = r.choices(list(mix), list(mix.values()))[0]
        count = length if r.random() < 0.6 else r.randint(min(length, 64), length)
        make = {"text": self.text, "passkey": self.passkey, "records": self.records, "repeat": self.repeat}[kind]
        parts = make(length if kind == "text" else count)
        if len(parts[0]) < length:  # a shorter task stands before or after other text
            extra = self.text(length - len(parts[0]))
            order = (extra, parts) if r.random() < 0.8 else (parts, extra)
            parts = [first + second for first, second in zip(*order)]
        tokens, weights, owners = parts
        return Row([BOS] + tokens[:length], weights[:length], owners[:length], kind)
