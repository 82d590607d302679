"""The gaps between the tokens of an answer, alone and while a long document is read (./dev bench --gaps): by default the
shape of TinyLlama with random weights, LongHeads, and a document of 32,768 tokens, of which as much is read as --seconds
allow; with and without --prefill-slowdown. Exit status: 0, 1 if the longest gap is more than 3 times the steady one."""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOAL = 3
WARM_UP_SECONDS = 3
PREFILLED = 'folio_prompt_tokens_total{source="computed"}'


class Answer:
    """An answer without end: when each part of it arrived."""

    def __init__(self, server, strategy):
        self.process = server.start_folio("--json", "ask", "--question", "What follows?", "--strategy", strategy, "--ignore-eos",
                                          "--max-new-tokens", 16384)
        self.times, self.first = [], threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            if "delta" in json.loads(line):
                self.times.append(time.monotonic())
                self.first.set()
        self.first.set()

    def gaps(self, begin, end):
        """Seconds between the tokens that came between these times."""
        times = [moment for moment in self.times if begin <= moment < end]
        return [later - earlier for earlier, later in zip(times, times[1:])]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.thread.join()


def measure(args, slowdown):
    """({what was measured of one server}, tokens of the document per second)"""
    with RunningServer(args.bin, args.model, f"--weight-dtype={args.weight_dtype}", f"--threads={args.threads}",
                       f"--prefill-slowdown={slowdown}") as server, tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "document.txt"
        path.write_text("0123456789abcdef" * (args.tokens // 16), encoding="ascii")  # a synthetic model has a token per byte
        answer = Answer(server, args.strategy)
        answer.first.wait()
        time.sleep(WARM_UP_SECONDS)  # how long something is measured is no synchronisation
        start = time.monotonic()
        time.sleep(args.steady_seconds)
        upload_start, read_before = time.monotonic(), server.metrics()[PREFILLED]
        upload = server.start_folio("--json", "upload", path, "--strategy", args.strategy)
        time.sleep(args.seconds)
        end, read = time.monotonic(), server.metrics()[PREFILLED] - read_before
        upload.kill()
        upload.wait()
        answer.stop()
    steady, beside = answer.gaps(start, upload_start), answer.gaps(upload_start, end)
    if len(steady) < 20 or len(beside) < 20:
        raise RuntimeError(f"{len(steady)} tokens alone and {len(beside)} beside the document are too few; measure for longer")
    return steady, beside, read / (end - upload_start)


def describe(gaps):
    ordered = sorted(gaps)
    return (f"{1000 * statistics.median(ordered):7.1f} {1000 * ordered[int(0.99 * len(ordered))]:7.1f} {1000 * ordered[-1]:7.1f}"
            f"  {len(ordered):5}")


def main():
    parser = argparse.ArgumentParser(prog="./dev bench --gaps", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b")
    parser.add_argument("--weight-dtype", default="int4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--strategy", default="long_heads")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--steady-seconds", type=float, default=15)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    ratios = {}
    for slowdown in (GOAL, 0):
        steady, beside, speed = measure(args, slowdown)
        ratios[slowdown] = max(beside) / statistics.median(steady)
        print(f"--prefill-slowdown {slowdown}: gaps in ms    p50     p99    most  tokens")
        print(f"{'alone':<32} {describe(steady)}")
        print(f"{'beside the document':<32} {describe(beside)}")
        print(f"the longest is {ratios[slowdown]:.1f} steady ones; {speed:.0f} tokens of the document per second", flush=True)
    return 0 if ratios[GOAL] <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
