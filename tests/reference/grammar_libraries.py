"""xgrammar beside llguidance: seconds to compile a grammar, and microseconds for the mask of the next token, over random answers. Each
grammar runs in a process of its own, which is given 20 s. Needs a JSON file of a vocabulary as mistral-common has them (tekken):

    pip install -r tests/reference/requirements.txt xgrammar==0.2.8 llguidance==1.9.1 mistral-common==1.5.4
    python tests/reference/grammar_libraries.py .../mistral_common/data/tekken_240911.json
"""
import base64
import json
import multiprocessing
import random
import statistics
import sys
import time

VOCAB = 32_000
WALKS, MOST_TOKENS = 10, 60
SCHEMAS = {
    "person": {"type": "object", "additionalProperties": False, "required": ["name", "age"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}}}},
    "200 properties": {"type": "object", "additionalProperties": False, "properties": {f"p{i}": {"type": "string"} for i in range(200)}},
    "string of up to 10,000": {"type": "string", "maxLength": 10_000},
}
EXPRESSIONS = {
    "address": r"[a-z]+@[a-z]+\.(com|org)",
    "1 of 5,000": "|".join(f"{i:x}" for i in range(5000)),
    r"(\w+ ?){1,20}": r"(\w+ ?){1,20}",
    "(((a|b|c)*)*)*": "(((a|b|c)*)*)*",
}


def bits(words):
    return [32 * i + b for i, word in enumerate(words) if word for b in range(32) if word >> b & 1]


def with_xgrammar(tokens, kind, source, pipe):
    import xgrammar
    info = xgrammar.TokenizerInfo([b""] + tokens, xgrammar.VocabType.RAW, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    start = time.perf_counter()
    grammar = compiler.compile_regex(source) if kind == "regex" else compiler.compile_json_schema(source, any_whitespace=False)
    seconds = time.perf_counter() - start
    mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def fill(matcher):
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask)
        return mask

    def accept(matcher, token):
        if matcher is None:
            return xgrammar.GrammarMatcher(grammar)
        matcher.accept_token(token)
        return matcher
    run(pipe, seconds, fill, lambda m: [t for t in bits([w & 0xFFFFFFFF for w in m[0].tolist()]) if 0 < t <= len(tokens)], accept,
        lambda m: m.is_terminated())


def with_llguidance(tokens, kind, source, pipe):
    import llguidance
    import llguidance.numpy as masks

    class Tokens:
        eos_token_id, bos_token_id, special_token_ids = 0, None, [0]

        def __init__(self):
            self.tokens = [b"<eos>"] + tokens
            self.ids = {token: id for id, token in enumerate(self.tokens)}

        def __call__(self, text):
            """The longest token, again and again: what must follow is handed over as tokens."""
            text, ids = text.encode() if isinstance(text, str) else text, []
            while text:
                length = next(n for n in range(min(len(text), 64), 0, -1) if text[:n] in self.ids)
                ids.append(self.ids[text[:length]])
                text = text[length:]
            return ids
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
    start = time.perf_counter()
    grammar = llguidance.LLMatcher.grammar_from_regex(source) if kind == "regex" else llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps({**json.loads(source), "x-guidance": {"whitespace_flexible": False}}))
    first = llguidance.LLMatcher(tokenizer, grammar)
    seconds = time.perf_counter() - start
    if first.is_error():
        raise RuntimeError(first.get_error()[:60])
    mask = masks.allocate_token_bitmask(1, tokenizer.vocab_size)

    def fill(matcher):
        masks.fill_next_token_bitmask(matcher, mask, 0)
        return mask

    def accept(matcher, token):
        if matcher is None:
            return first.deep_copy()
        matcher.consume_token(token)
        return matcher
    run(pipe, seconds, fill, lambda m: [t for t in bits([int(w) & 0xFFFFFFFF for w in m[0]]) if 0 < t <= len(tokens)], accept,
        lambda m: m.is_stopped() or m.is_error())


def run(pipe, seconds, fill, allowed, accept, is_done):
    pipe.send(("compiled", seconds))
    times, rng = [], random.Random(1)
    for _ in range(WALKS):
        state = accept(None, None)
        for _ in range(MOST_TOKENS):
            if is_done(state):
                break
            start = time.perf_counter()
            mask = fill(state)
            times.append(1e6 * (time.perf_counter() - start))
            tokens = allowed(mask)
            if not tokens:
                break
            state = accept(state, rng.choice(tokens))
    pipe.send(("masks", statistics.mean(times), max(times)))


def guarded(function, *args):
    try:
        function(*args)
    except Exception as error:  # what a library says is part of the table
        args[-1].send(("error", str(error).strip().splitlines()[-1][:60]))


def measure(function, tokens, kind, source):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=guarded, args=(function, tokens, kind, source, theirs))
    process.start()
    said, deadline = [], time.monotonic() + 20
    while time.monotonic() < deadline and (not said or said[-1][0] == "compiled"):
        if ours.poll(0.1):
            said.append(ours.recv())
    process.kill()
    process.join()
    if said and said[-1][0] == "error":
        return said[-1][1]
    compiled = f"{1000 * said[0][1]:.1f} ms" if said else "not within 20 s"
    return f"{compiled}; {said[1][1]:.0f} / {said[1][2]:.0f} us" if len(said) > 1 else f"{compiled}; masks: not within 20 s"


def main():
    tokens = [base64.b64decode(entry["token_bytes"]) for entry in json.load(open(sys.argv[1]))["vocab"][:VOCAB]]
    print("| grammar | xgrammar: compiled; mask, mean / worst | llguidance, likewise |\n|---|---|---|")
    for kind, grammars in (("schema", {k: json.dumps(v) for k, v in SCHEMAS.items()}), ("regex", EXPRESSIONS)):
        for name, source in grammars.items():
            cells = [measure(function, tokens, kind, source) for function in (with_xgrammar, with_llguidance)]
            shown = name.replace("|", "\\|")
            print(f"| {shown} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
