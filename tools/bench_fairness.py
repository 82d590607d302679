"""What the schedule does for those who share a server, measured over gRPC with the bundled model: short questions beside
another client's flood of long prompts, predictions against what then happened, and goodput under overload."""
import argparse
import json
import multiprocessing
import pathlib
import random
import statistics
import struct
import subprocess
import tempfile
import threading
import time

import raw_http2 as h2
from demo import MODEL
from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
GENERATE, ESTIMATE = "/folio.v1.Inference/Generate", "/folio.v1.Inference/Estimate"
# Addresses are clients: each has its share.
FLOODER, ASKER = ("127.0.0.2", 0), ("127.0.0.3", 0)
FIRST_ID, NUM_IDS = 300, 600
# Of GenerateEvent, of Completed, of Timings, of EstimateResponse.
DELTA, COMPLETED, TIMINGS = 6, 8, 5
QUEUE_SECONDS, FIRST_TOKEN_SECONDS = 1, 3
ESTIMATED_QUEUE, ESTIMATED_FIRST_TOKEN = 9, 10


def question(num_tokens, max_new_tokens, rng):
    """A GenerateRequest: so many random tokens, an answer of so many whatever it says."""
    ids = b"".join(h2.varint(FIRST_ID + rng.randrange(NUM_IDS)) for _ in range(num_tokens))
    stopping = h2.field(1, max_new_tokens) + h2.field(4, 1)
    return h2.field(3, h2.field(1, ids)) + h2.field(7, stopping)


def number(data, wanted):
    """A double of a message; None: it is not there."""
    return next((struct.unpack("<d", value)[0] for key, value in h2.fields(data) if key == wanted), None)


def ask(connection, request):
    """(seconds to the first token, Completed) of one question; None, None: it was refused."""
    start, first, completed = time.monotonic(), None, None
    for event in connection.call(GENERATE, request, timeout=600):
        for key, value in h2.fields(event):
            if key == DELTA and first is None:
                first = time.monotonic() - start
            if key == COMPLETED:
                completed = value
    return (first, completed) if completed is not None else (None, None)


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


RETRY_SECONDS = 5
SIZES = (32, 200, 1000, 4000)
STEP_TOKENS = 512


class Flood:
    """Keeps `size` long prompts in the queue, from a process of its own, until it is left; those that are refused come
    again some seconds later."""

    def __init__(self, address, size, num_tokens):
        self.stop = multiprocessing.Event()
        self.done, self.refused = multiprocessing.Value("i"), multiprocessing.Value("i")
        self.process = multiprocessing.Process(target=self._run, args=(address, size, num_tokens), daemon=True)

    def __enter__(self):
        self.process.start()
        return self

    def _run(self, address, size, num_tokens):
        connections = [h2.Connection(address, source=FLOODER) for _ in range(1 + size // 100)]
        for n in range(size):
            threading.Thread(target=self._send, args=(connections[n % len(connections)], n, num_tokens),
                             daemon=True).start()
        self.stop.wait()

    def _send(self, connection, n, num_tokens):
        request = question(num_tokens, 16, random.Random(n))
        while True:
            first, _ = ask(connection, request)
            count = self.done if first is not None else self.refused
            with count.get_lock():
                count.value += 1
            if first is None:
                time.sleep(RETRY_SECONDS)

    def __exit__(self, *_):
        self.stop.set()
        self.process.join()


def ask_many(address, count, pause, seed):
    """Seconds to the first token of each of so many short questions, one after the other."""
    rng, times = random.Random(seed), []
    connection = h2.Connection(address, source=ASKER)
    for _ in range(count):
        first, _ = ask(connection, question(rng.randrange(16, 64), 8, rng))
        times.append(first)
        time.sleep(pause)
    connection.close()
    return times


class Steps:
    """How long a full step of prompts takes, by the tokens that are read meanwhile."""

    def __init__(self, server):
        self.server = server

    def _tokens(self):
        return self.server.metrics()['folio_prompt_tokens_total{source="computed"}']

    def __enter__(self):
        self.before, self.start = self._tokens(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = STEP_TOKENS * (time.monotonic() - self.start) / (self._tokens() - self.before)


def flood(args):
    with RunningServer(args.bin, args.model, f"--step-tokens={STEP_TOKENS}", *args.flags) as server:
        ask_many(server.address, 20, 0, 7)  # warms up
        alone = ask_many(server.address, args.questions, 0.02, 1)
        with Flood(server.address, args.flood, args.flood_tokens) as flooder:
            time.sleep(args.settle)
            with Steps(server) as steps:
                time.sleep(5)
            start = time.monotonic()
            beside = ask_many(server.address, args.questions, 0.02, 1)
            print(f"flood: {args.flood} prompts of {args.flood_tokens} tokens, {flooder.done.value} done, "
                  f"{flooder.refused.value} refused; questions for {time.monotonic() - start:.0f} s beside it")
    step = steps.seconds
    lost = sum(time is None for time in beside)
    beside = [time for time in beside if time is not None]
    print(f"short questions: {len(beside)} answered beside the flood, {lost} refused; a full step of "
          f"the flood takes {1000 * step:.0f} ms")
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        one, other = quantile(alone, part), quantile(beside, part)
        print(f"{name} of the first token: alone {1000 * one:.0f} ms, beside the flood {1000 * other:.0f} ms, "
              f"{other / one:.2f} times, {(other - step) / one:.2f} without one step")


def load_test(args, server, *flags):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([str(pathlib.Path(args.bin) / "folio-loadtest"), f"--server={server.address}",
                        f"--output={file.name}", *flags], stdout=subprocess.DEVNULL, check=False)  # refusals are results
        return json.loads(pathlib.Path(file.name).read_text())


def estimates(args):
    """Beside a load that the server can just bear, one estimate before each question."""
    with RunningServer(args.bin, args.model, *args.flags) as server:
        best = load_test(args, server, "--concurrency=16", "--duration=10", *args.mix)["request_throughput"]
        stop, rng, errors, queue_errors = threading.Event(), random.Random(5), [], []
        by_size = {size: [] for size in SIZES}

        def load():
            while not stop.is_set():
                load_test(args, server, f"--rate={args.load * best}", "--duration=30", f"--seed={rng.randrange(1000)}",
                          *args.mix)
        threading.Thread(target=load, daemon=True).start()
        time.sleep(5)
        connection = h2.Connection(server.address, source=ASKER)
        for _ in range(args.questions):
            size = rng.choice(SIZES)
            request = question(size, 16, rng)
            estimate = next(connection.call(ESTIMATE, h2.field(1, request)))
            first, completed = ask(connection, request)
            expected = number(estimate, ESTIMATED_FIRST_TOKEN)
            if first is None or expected is None:
                continue
            timings = dict(h2.fields(completed))[TIMINGS]
            errors.append(expected / number(timings, FIRST_TOKEN_SECONDS) - 1)
            by_size[size].append(errors[-1])
            queue_errors.append((number(estimate, ESTIMATED_QUEUE) or 0) - (number(timings, QUEUE_SECONDS) or 0))
        stop.set()
    within = sum(abs(error) <= 0.25 for error in errors) / len(errors)
    print(f"estimates: {len(errors)} questions at {args.load:.0%} of {best:.1f} requests/s: first token within 25 % of "
          f"what was said for {within:.0%}; error p10 {quantile(errors, 0.1):+.0%}, median "
          f"{statistics.median(errors):+.0%}, p90 {quantile(errors, 0.9):+.0%}; queue, median "
          f"{1000 * statistics.median(map(abs, queue_errors)):.0f} ms off")
    for size, some in by_size.items():
        print(f"  {size} tokens: {sum(abs(error) <= 0.25 for error in some)} of {len(some)}, median "
              f"{statistics.median(some):+.0%}, p10 {quantile(some, 0.1):+.0%}, p90 {quantile(some, 0.9):+.0%}")


def overload(args):
    with RunningServer(args.bin, args.model, *args.flags) as server:
        load_test(args, server, "--concurrency=16", "--num-requests=50", *args.mix)  # warms up
        best = load_test(args, server, "--concurrency=64", f"--duration={args.seconds}", *args.mix)["request_throughput"]
        print(f"best: {best:.1f} requests/s in a closed loop")
        for deadline in (300, args.deadline):
            result = load_test(args, server, f"--rate={10 * best}", f"--duration={args.seconds}",
                               f"--timeout={deadline}", *args.mix)
            good = result["completed"] / result["duration"]
            print(f"10 x overload, deadline {deadline:g} s: {good:.1f} requests/s in time, {good / best:.0%} of the best; "
                  f"{result.get('status_codes')}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("flood", "estimates", "overload"))
    parser.add_argument("--bin", default=ROOT / "build/release/bin")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--flood", type=int, default=500)
    parser.add_argument("--flood-tokens", type=int, default=32000)
    parser.add_argument("--settle", type=float, default=15, help="seconds of flood before the questions")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--deadline", type=float, default=5)
    parser.add_argument("--flags", nargs="*", default=[], help="of the server")
    args = parser.parse_args()
    args.mix = ("--prompt-tokens=64:0.6,512:0.3,4096:0.1", "--output-tokens=32:1",
                "--strategies=full:1,lm_infinite:1,long_heads:1")
    {"flood": flood, "estimates": estimates, "overload": overload}[args.what](args)


if __name__ == "__main__":
    main()
