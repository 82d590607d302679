"""Many questions about one long document in one call (Inference.AskMany): its wall time beside that of as many decode steps of the
whole batch, and the prompt tokens that are computed. With the bundled model; run it from ./dev build."""
import argparse
import json
import pathlib
import tempfile
import time

from bench_service import characters_per_token, document
from demo import MODEL
from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMPUTED = 'folio_prompt_tokens_total{source="computed"}'


def answers(server, document_id, questions, num_tokens, strategy):
    """Wall seconds, and the Completed events."""
    asked = [arg for question in questions for arg in ("--question", question)]
    start = time.monotonic()
    done = server.folio("--json", "ask", "--document", document_id, *asked, "--max-new-tokens", num_tokens, "--ignore-eos",
                        "--strategy", strategy)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return seconds, [e["event"]["completed"] for e in events if "completed" in e.get("event", {})]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--strategy", default="long_heads")
    args = parser.parse_args()
    questions = [f"What came to pass in the year {number}?" for number in range(args.questions)]
    with RunningServer(args.bin, MODEL, "--kv-bytes=6GiB") as server, tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "document.txt"
        path.write_text(document(args.tokens, characters_per_token(server)))
        uploaded = server.folio("--json", "upload", path, "--id", "book", "--strategy", args.strategy)
        if uploaded.returncode != 0:
            raise RuntimeError(uploaded.stderr)
        known = int(json.loads(server.folio("--json", "docs", "show", "book").stdout)["token_count"])
        computed = server.metrics()[COMPUTED]
        for _ in range(3):
            seconds, completed = answers(server, "book", questions, args.new_tokens, args.strategy)
            longest = max(c["timings"]["decode_seconds"] for c in completed)
            asked = sum(int(c["usage"]["prompt_tokens"]) - known for c in completed)
            total = server.metrics()[COMPUTED]
            print(f"{len(completed)} answers of {args.new_tokens} tokens behind {known} tokens: {seconds:.2f} s, "
                  f"{seconds / longest:.2f} of the longest decode of one in the batch ({longest:.2f} s); prompt tokens computed: "
                  f"{total - computed:.0f}, of the questions {asked}")
            computed = total


if __name__ == "__main__":
    main()
