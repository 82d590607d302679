"""The product in one minute: a long document, a fact hidden in it, one question under three strategies.

Exit status 1 if LongHeads does not find the fact.
"""
import argparse
import json
import pathlib
import re
import sys
import tempfile

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "folio-tiny"
TEXT = ROOT / "models" / "texts" / "ezekiel.txt"
KEY = "71854"
FACT = f"The pass key is {KEY}. Remember it. {KEY} is the pass key."
QUESTION = "What is the pass key? The pass key is"
MIN_TIMES_TRAINED = 64
STRATEGIES = ["long_heads", "lm_infinite", "full"]


def document(num_characters, depth):
    """Verses up to about num_characters, the fact at `depth` of them."""
    verses, size = [], 0
    for verse in TEXT.read_text().splitlines():
        verses.append(verse)
        size += len(verse) + 1
        if size >= num_characters:
            break
    verses.insert(int(depth * len(verses)), FACT)
    return " ".join(verses)


class Ask:
    """One question; shows progress and the answer while they come."""

    def __init__(self, server, path, strategy):
        self.strategy, self.answer, self.error = strategy, "", ""
        self.prompt_tokens, self.completed = 0, {}
        process = server.start_folio("--json", "ask", "--document", path, "--question", QUESTION,
                                     "--strategy", strategy, "--max-new-tokens", 8)
        for line in process.stdout:
            self.note(json.loads(line))
        process.wait()
        print("" if sys.stdout.isatty() else f"  {strategy:<12} {QUESTION}{self.answer}{self.error}", flush=True)

    def note(self, event):
        if "progress" in event:
            done, known = (int(event["progress"].get(k, 0)) for k in ("prefilled_tokens", "known_tokens"))
            self.show(f"reading: {done} of {known} tokens")
        elif "accepted" in event:
            self.prompt_tokens = int(event["accepted"]["prompt_tokens"])
        elif "delta" in event:
            self.answer += event["delta"].get("text", "")
            self.show(f"{QUESTION}{self.answer}")
        elif "completed" in event:
            self.completed = event["completed"]
        elif "error" in event:
            self.error = event["error"]["message"]
            self.show(self.error)

    def show(self, text):
        """Rewrites the line of this strategy, where there is a terminal."""
        if sys.stdout.isatty():
            print(f"\r  {self.strategy:<12} {text:<78}", end="", flush=True)

    def right(self):
        found = re.search(r"\d+", self.answer)
        return found is not None and found.group() == KEY

    def row(self):
        timings, memory = self.completed.get("timings", {}), self.completed.get("memory", {})
        kv_bytes = sum(int(memory.get(k, 0)) for k in ("device_kv_bytes_peak", "shared_kv_bytes", "summary_bytes_peak"))
        return (f"{self.strategy:<12} {self.answer.strip()[:24]:<24} {'right' if self.right() else 'wrong':<6} "
                f"{1000 * timings.get('time_to_first_token_seconds', 0):>8.0f} ms "
                f"{timings.get('tokens_per_second', 0):>10.0f} {kv_bytes / 2**20:>10.1f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--characters", type=int, default=59000, help="size of the document")
    args = parser.parse_args()
    config = json.loads((MODEL / "config.json").read_text())
    trained = config["max_position_embeddings"]
    with RunningServer(args.bin, MODEL, "--kv-bytes=2000000000") as server, tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "ezekiel.txt"
        path.write_text(document(args.characters, depth=0.4))
        print(f"A model trained on {trained} tokens reads the Book of Ezekiel, the pass key hidden at 40 %.")
        asks = [Ask(server, path, strategy) for strategy in STRATEGIES]
    times = asks[0].prompt_tokens / trained
    print(f"\n{asks[0].prompt_tokens} tokens, {times:.0f} times the trained length")
    print(f"{'strategy':<12} {'answer':<24} {'':<6} {'TTFT':>11} {'tokens/s':>10} {'KV cache':>14}")
    for ask in asks:
        print(ask.row())
    if times < MIN_TIMES_TRAINED:
        sys.exit(f"demo: the document is shorter than {MIN_TIMES_TRAINED} times the trained length")
    if not asks[0].right():
        sys.exit("demo: LongHeads did not find the fact")


if __name__ == "__main__":
    main()
