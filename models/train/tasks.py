"""Training rows: plain text, passkey retrieval, key-value records and repeats, as tokens with loss weights.

Passkey retrieval follows Mohtashami and Jaggi (2023): a key hidden in filler text, asked for at the end.
"""
import json
import random

TASK = ("There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
        "I will quiz you about the important information there.")
GRASS = ["The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
         "There and back again."]
NAMES = ["pass key", "magic number", "secret code", "door number", "lucky number", "house number"]
MIX = {"text": 0.35, "passkey": 0.32, "records": 0.18, "repeat": 0.15}
ANSWER_WEIGHT = 4.0
BOS = 1


def needle(name, key):
    return f"The {name} is {key}. Remember it. {key} is the {name}."


def question(name):
    return f"What is the {name}? The {name} is"


def record(word, value):
    return f"line {word}: REGISTER_CONTENT is <{value}>"


class Rows:
    """Makes rows from one split of the corpus ('' or 'held_out_'). Deterministic for a seed."""

    def __init__(self, tokenizer, corpus_path, seed, split=""):
        with open(corpus_path) as file:
            corpus = json.load(file)
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.bible = tokenizer.encode(corpus[split + "bible"])
        self.jargon = tokenizer.encode(corpus[split + "jargon"])
        self.bible_stream = [token for verse in self.bible for token in verse]
        self.jargon_stream = [token for text in self.jargon for token in text]
        self.grass = tokenizer.encode(GRASS)
        self.grass_stream = [token for sentence in self.grass for token in sentence]
        pieces = (tokenizer.id_to_piece(i) for i in range(tokenizer.get_piece_size()))
        self.words = [piece[1:] for piece in pieces
                      if piece[0] == "\u2581" and len(piece) > 3 and piece[1:].islower() and piece[1:].isalpha()]

    def encode(self, text):
        return self.tokenizer.encode(text)

    def filler(self, count, kind=None):
        """`count` tokens of text that does not matter."""
        if count <= 0:
            return []
        kind = kind or self.random.choice(["grass", "grass", "bible", "jargon", "verses", "mix", "words"])
        if kind == "grass":
            return (self.grass_stream * (count // len(self.grass_stream) + 1))[:count]
        if kind in ("bible", "jargon"):
            stream = self.bible_stream if kind == "bible" else self.jargon_stream
            start = self.random.randrange(len(stream) - count)
            return stream[start:start + count]
        tokens = []
        while len(tokens) < count:
            if kind == "verses":
                tokens += self.random.choice(self.bible)
            elif kind == "mix":
                tokens += self.random.choice(self.random.choice([self.bible, self.jargon, self.grass, self.grass]))
            else:
                tokens += self.encode(" ".join(self.random.choices(self.words, k=12)) + ".")
        return tokens[:count]

    def text(self, count):
        return self.filler(count, self.random.choice(["bible", "bible", "jargon"])), [1.0] * count

    def answer(self, key):
        """Tokens of ' KEY' as they follow the question."""
        return self.encode(f"is {key}")[len(self.encode("is")):]

    def passkey(self, count, kind=None, depth=None, name=None, distractors=None, task=None):
        """(tokens, weights, answer tokens) of `count` tokens, the answer and a full stop last."""
        r = self.random
        digits = r.choice([5, 5, 5, 5, 4, 3, 6])
        number = lambda: r.randint(10 ** (digits - 1), 10 ** digits - 1)
        name = name or r.choice([NAMES[0]] * len(NAMES) + NAMES)
        key = number()
        parts = [self.encode(needle(name, key))]
        others = [other for other in NAMES if other != name]
        for other in r.sample(others, r.choice([0, 0, 1, 2]) if distractors is None else distractors):
            parts.append(self.encode(needle(other, number())))
        tail = self.encode(question(name))
        answer = self.answer(key)
        stop = self.encode("a.")[-1:]
        head = self.encode(TASK) if (task if task is not None else r.random() < 0.4) else []
        used = lambda: len(head) + sum(map(len, parts)) + len(tail) + len(answer) + len(stop)
        while used() > count and len(parts) > 1:
            parts.pop()
        if used() > count:
            head = []
        space = max(0, count - used())
        cuts = sorted(r.random() for _ in parts) if depth is None else [depth]
        r.shuffle(parts)
        filler, tokens, last = self.filler(space, kind), list(head), 0
        for cut, part in zip(cuts, parts):
            at = int(cut * space)
            tokens += filler[last:at] + part
            last = at
        tokens += filler[last:] + tail
        weights = [1.0] * len(tokens) + [ANSWER_WEIGHT] * len(answer) + [1.0]
        return tokens + answer + stop, weights, answer

    def records(self, count):
        """Lines of key-value records, then one to four of them asked for."""
        r = self.random
        ask = lambda word: f"Tell me the REGISTER_CONTENT in line {word}: REGISTER_CONTENT is <"
        num_questions = r.randint(1, 4)
        room = count - num_questions * (len(self.encode(ask("house-people"))) + 10)
        values, tokens = {}, []
        while True:
            word, value = "-".join(r.choices(self.words, k=2)), r.randint(1000, 9999)
            line = self.encode(record(word, value))
            if len(tokens) + len(line) > room:
                break
            values[word] = value
            tokens += line
        if not values:
            return self.repeat(count)
        weights = [1.0] * len(tokens)
        for word in r.sample(list(values), min(num_questions, len(values))):
            prompt = self.encode(ask(word))
            whole = self.encode(f"{ask(word)}{values[word]}>")
            tokens += whole
            weights += [0.5] * len(prompt) + [ANSWER_WEIGHT] * (len(whole) - len(prompt) - 1) + [1.0]
        return tokens, weights

    def repeat(self, count):
        """Filler in which a span comes twice; the second time counts double."""
        length = self.random.randint(8, max(9, count // 2))
        span = self.filler(length, self.random.choice(["words", "words", "jargon", "mix", "bible"]))
        filler = self.filler(count - 2 * length)
        at = self.random.randint(0, len(filler))
        tokens = filler[:at] + span + filler[at:] + span
        return tokens, [1.0] * (len(tokens) - length) + [2.0] * length

    def row(self, length):
        """BOS and `length` tokens, the weight of predicting each of them, and the kind of row."""
        r = self.random
        kind = r.choices(list(MIX), list(MIX.values()))[0]
        count = length if r.random() < 0.6 else r.randint(min(length, 48), length)
        if kind == "text":
            tokens, weights = self.text(length)
        elif kind == "passkey":
            tokens, weights, _ = self.passkey(count)
        else:
            tokens, weights = self.records(count) if kind == "records" else self.repeat(count)
        if len(tokens) < length:  # a shorter task stands before or after other text
            extra, extra_weights = self.text(length - len(tokens))
            if r.random() < 0.7:
                tokens, weights = extra + tokens, extra_weights + weights
            else:
                tokens, weights = tokens + extra, weights + extra_weights
        return [BOS] + tokens[:length], weights[:length], kind
