"""What the schedule does for those who share a server, measured over gRPC with the bundled model: short questions beside
another client's flood of long prompts, predictions against what then happened, and goodput under overload."""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import re
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
TENANTS = [(f"127.0.0.{n}", 0) for n in range(4, 8)]
FIRST_ID, NUM_IDS = 300, 600
# Of GenerateEvent, of Completed, of Timings, of EstimateResponse.
DELTA, COMPLETED, TIMINGS = 6, 8, 5
QUEUE_SECONDS, FIRST_TOKEN_SECONDS = 1, 3
ESTIMATED_QUEUE, ESTIMATED_FIRST_TOKEN = 9, 10
# Prompts of the tenants of `estimates`, and how many of ten are so long.
SIZES = {32: 2, 200: 3, 1000: 2, 4000: 1, 16000: 1, 32000: 1}
CONNECTIONS = 8  # of the overload: one has 256 calls at a time
WINDOW = 1 << 20  # of HTTP/2: prompts of token ids are large


class Caller(h2.Connection):
    """Knows after how many seconds a call that was refused may come again, by its stream."""

    def __init__(self, address, source):
        self.delays = {}
        super().__init__(address, source=source, window=WINDOW)

    def _on_frame(self, kind, flags, stream, payload):
        found = kind == h2.HEADERS and re.search(rb"grpc-retry-pushback-ms.(\d+)", payload, re.DOTALL)
        if found:
            self.delays[stream] = int(found[1]) / 1000
        super()._on_frame(kind, flags, stream, payload)


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


def timing(completed, which):
    return number(dict(h2.fields(completed))[TIMINGS], which) or 0


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def server_of(args, *flags):
    return RunningServer(args.bin, args.model, *flags, *args.flags, processors=args.server_processors)


RETRY_SECONDS = 5
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
    """Of each of so many short questions, one after the other: seconds to the first token as the client sees it, as the
    engine does, and in the queue of that. None: it was refused."""
    rng, times = random.Random(seed), []
    connection = h2.Connection(address, source=ASKER)
    for _ in range(count):
        first, completed = ask(connection, question(rng.randrange(16, 64), 8, rng))
        times.append(first and (first, timing(completed, FIRST_TOKEN_SECONDS), timing(completed, QUEUE_SECONDS)))
        time.sleep(pause)
    connection.close()
    return times


class Steps:
    """How long the steps of the server were meanwhile, by its own histogram: mean and 99th percentile."""

    NAME = "folio_engine_step_seconds"

    def __init__(self, server):
        self.server = server

    def _read(self):
        return {key: value for key, value in self.server.metrics().items() if key.startswith(self.NAME)}

    def __enter__(self):
        self.before = self._read()
        return self

    def __exit__(self, *_):
        grown = {key: value - self.before[key] for key, value in self._read().items()}
        count = grown[f"{self.NAME}_count"]
        self.mean = grown[f"{self.NAME}_sum"] / max(1, count)
        ends = sorted((float(key.split('"')[1]), value) for key, value in grown.items() if "_bucket" in key)
        self.p99, low, below = 0, 0, 0
        for end, at_most in ends:
            if at_most >= 0.99 * count:
                # As if the steps of a bucket were spread evenly over it.
                part = (0.99 * count - below) / max(1, at_most - below)
                self.p99 = low + part * (min(end, 2 * low) - low)
                return
            low, below = end, at_most


def flood(args):
    with server_of(args, f"--step-tokens={STEP_TOKENS}") as server:
        ask_many(server.address, 20, 0, 7)  # warms up
        alone = ask_many(server.address, args.questions, 0.02, 1)
        with Flood(server.address, args.flood, args.flood_tokens) as flooder:
            time.sleep(args.settle)
            start = time.monotonic()
            with Steps(server) as steps:
                beside = ask_many(server.address, args.questions, 0.02, 1)
            print(f"flood: {args.flood} prompts of {args.flood_tokens} tokens, {flooder.done.value} done, "
                  f"{flooder.refused.value} refused; questions for {time.monotonic() - start:.0f} s beside it")
    lost = sum(times is None for times in beside)
    beside = [times for times in beside if times is not None]
    print(f"short questions: {len(beside)} answered beside the flood, {lost} refused; steps meanwhile: mean "
          f"{1000 * steps.mean:.1f} ms, p99 {1000 * steps.p99:.1f} ms")
    parts = {"first token": lambda times: times[0], "of that in the engine": lambda times: times[1],
             "of that in its queue": lambda times: times[2], "outside of the engine": lambda times: times[0] - times[1]}
    for name, part in (("p50", 0.5), ("p99", 0.99)):
        for what, of in parts.items():
            one, other = (1000 * quantile([of(times) for times in some], part) for some in (alone, beside))
            print(f"{name} {what}: alone {one:.1f} ms, beside the flood {other:.1f} ms")
        one, other = (quantile([times[0] for times in some], part) for some in (alone, beside))
        print(f"{name}: {other / one:.2f} times alone; {(other - steps.mean) / one:.2f} without a mean step, "
              f"{(other - steps.p99) / one:.2f} without one of the 99th percentile; the goal is 2")


def load_test(args, server, *flags, seconds=600):
    """The report of folio-loadtest; {} if it takes longer than so many seconds."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        try:
            subprocess.run([str(pathlib.Path(args.bin) / "folio-loadtest"), f"--server={server.address}",
                            f"--output={file.name}", *flags], stdout=subprocess.DEVNULL, check=False,  # refusals are results
                           timeout=seconds)
        except subprocess.TimeoutExpired:
            return {}
        return json.loads(pathlib.Path(file.name).read_text())


def size_of(rng):
    return rng.choices(list(SIZES), SIZES.values())[0]


def ask_in_turn(address, source, seconds, done):
    """A tenant with two requests at a time."""
    def run(seed):
        rng, end = random.Random(seed), time.monotonic() + seconds
        connection = Caller(address, source)
        while time.monotonic() < end:
            if ask(connection, question(size_of(rng), 16, rng))[0] is not None and time.monotonic() < end:
                with done.get_lock():
                    done.value += 1
    threads = [threading.Thread(target=run, args=(f"{source[0]} {n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_and_compare(address, source, rate, count, results):
    """A tenant that sends so many requests per second, in an open loop, each after an estimate of it: (tokens, expected
    seconds to the first token, actual, expected in the queue, actual)."""
    connections = [Caller(address, source) for _ in range(4)]
    rng, threads, samples = random.Random(source[0]), [], []

    def run(connection, size, request):
        estimate = next(connection.call(ESTIMATE, h2.field(1, request)))
        first, completed = ask(connection, request)
        expected = number(estimate, ESTIMATED_FIRST_TOKEN)
        if first is not None and expected is not None:
            samples.append((size, expected, timing(completed, FIRST_TOKEN_SECONDS), number(estimate, ESTIMATED_QUEUE) or 0,
                            timing(completed, QUEUE_SECONDS)))
    # Made before: what this process computes meanwhile would lie between an estimate and its request.
    sizes = [size_of(rng) for _ in range(count)]
    requests = [question(size, 16, rng) for size in sizes]
    at = time.monotonic()
    for n, (size, request) in enumerate(zip(sizes, requests)):
        at += rng.expovariate(rate)
        time.sleep(max(0, at - time.monotonic()))
        threads.append(threading.Thread(target=run, args=(connections[n % len(connections)], size, request)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    results.put(samples)


def in_processes(target, *arguments):
    """Runs it for each tenant in a process of its own, at the same time."""
    processes = [multiprocessing.Process(target=target, args=(*more, ), daemon=True) for more in arguments]
    for process in processes:
        process.start()
    return processes


def print_errors(name, samples, step):
    errors = [expected / was - 1 for _, expected, was, _, _ in samples]
    near = [abs(error) <= 0.25 for error in errors]
    or_step = [abs(error) <= 0.25 or abs(expected - was) <= step
               for error, (_, expected, was, _, _) in zip(errors, samples)]
    print(f"{name}: {len(samples)}, first token after {1000 * statistics.median(was for _, _, was, _, _ in samples):.0f} ms in "
          f"the median; within 25 % {sum(near) / len(near):.0%}, or a step {sum(or_step) / len(or_step):.0%}; error p10 "
          f"{quantile(errors, 0.1):+.0%}, median {statistics.median(errors):+.0%}, p90 {quantile(errors, 0.9):+.0%}")


def estimates(args):
    """Several tenants send texts of all lengths, as many as the server can just bear; before each they ask how long it takes."""
    with server_of(args) as server:
        done = multiprocessing.Value("i")
        for process in in_processes(ask_in_turn, *[(server.address, source, args.seconds, done) for source in TENANTS]):
            process.join()
        best = done.value / args.seconds
        results, count = multiprocessing.Queue(), args.questions // len(TENANTS)
        rate = args.load * best / len(TENANTS)
        with Steps(server) as steps:
            processes = in_processes(ask_and_compare, *[(server.address, source, rate, count, results)
                                                        for source in TENANTS])
            samples = sum((results.get() for _ in processes), [])
    print(f"estimates: {len(TENANTS)} tenants, {args.load:.0%} of the {best:.1f} requests/s that they have in a closed loop; "
          f"a step takes {1000 * steps.mean:.0f} ms, p99 {1000 * steps.p99:.0f} ms")
    print_errors("all", samples, steps.mean)
    for size in SIZES:
        some = [sample for sample in samples if sample[0] == size]
        if some:
            print_errors(f"  {size} tokens", some, steps.mean)
    queued = [(expected, was) for _, _, _, expected, was in samples if was > steps.mean]
    if queued:
        print(f"  {len(queued)} waited for more than a step before they ran: within 25 % "
              f"{sum(abs(expected / was - 1) <= 0.25 for expected, was in queued) / len(queued):.0%}")


def completed(server):
    return server.metrics()["folio_e2e_request_latency_seconds_count"]


def resident(server):
    return server.metrics()["folio_process_resident_memory_bytes"] / 2**20


class Window:
    """Requests per second that the server completes, from some seconds after now on for so many: until then a queue that
    fills has short prompts answered first, and has more and more long ones."""

    LEAD_SECONDS, END_SECONDS = 30, 5

    def __init__(self, server, seconds):
        self.server, self.seconds = server, seconds

    def __enter__(self):
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        time.sleep(self.LEAD_SECONDS)
        before, start = completed(self.server), time.monotonic()
        time.sleep(self.seconds)
        self.rate = (completed(self.server) - before) / (time.monotonic() - start)

    def __exit__(self, *_):
        self.thread.join()


def obey(address, n, deadline, results):
    """A client that comes again when it is told to, until it has its answer: (refusals, those that said when, whether it has)."""
    rng, connection = random.Random(n), Caller(address, ASKER)
    request, refused, told = question(rng.choice((64, 512, 4096)), 32, rng), 0, 0
    while time.monotonic() < deadline:
        if ask(connection, request)[0] is not None:
            return results.append((refused, told, True))
        delay = connection.delays.pop(connection.next_stream - 2, None)
        refused, told = refused + 1, told + (delay is not None)
        # Those who were told the same do not come at once.
        time.sleep((1 + rng.random()) * (delay or 1))
    results.append((refused, told, False))


def measured(args, server, *flags, extra=0):
    """(requests per second that the server completes under a load, what folio-loadtest reports of it)."""
    length = args.seconds + Window.LEAD_SECONDS + Window.END_SECONDS
    with Window(server, args.seconds) as window:
        result = load_test(args, server, *flags, f"--duration={length}", *args.mix, seconds=length + extra + 60)
    return window.rate, result


def flooded(args, server, name, deadline, best):
    """The part of the best rate that is completed when ten times as much comes, each with a deadline of so many seconds."""
    rate, result = measured(args, server, f"--rate={10 * best}", f"--connections={CONNECTIONS}", f"--timeout={deadline}",
                            extra=deadline)
    rejects = result.get("rejects", [])
    count, told = (sum(reject[key] for reject in rejects) for key in ("count", "with_retry_delay"))
    print(f"10 x overload, {name}: {rate:.1f} requests/s in time, {rate / best:.0%} of the best; {count} refused, {told} of "
          f"them told when to come again; {result.get('status_codes')}; resident {resident(server):.0f} MiB", flush=True)
    return rate / best


def obeyed(args, server, best):
    """Clients that come again when they are told to."""
    results, deadline = [], time.monotonic() + 60 + 4 * args.obeying / best
    threads = [threading.Thread(target=obey, args=(server.address, n, deadline, results)) for n in range(args.obeying)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused, told = sum(one for one, _, _ in results), sum(one for _, one, _ in results)
    print(f"{args.obeying} clients that come again when told: {sum(done for _, _, done in results)} have their answers "
          f"after {time.monotonic() - start:.0f} s, {refused} refusals, {told} of them told when to come again; "
          f"resident {resident(server):.0f} MiB")


def overload(args):
    """In rounds, as machines are faster and slower for minutes: each overload is compared with what came right before it."""
    deadlines = {"without deadlines": 60, f"deadlines of {args.deadline:g} s": args.deadline}
    parts = {name: [] for name in deadlines}
    with server_of(args) as server:
        load_test(args, server, "--concurrency=16", "--num-requests=50", *args.mix)  # warms up
        for _ in range(args.rounds):
            best, _ = measured(args, server, "--concurrency=64")
            print(f"best: {best:.1f} requests/s in a closed loop; resident {resident(server):.0f} MiB", flush=True)
            for name, deadline in deadlines.items():
                parts[name].append(flooded(args, server, name, deadline, best))
        obeyed(args, server, best)
    for name, of_best in parts.items():
        print(f"{name}: {statistics.median(of_best):.0%} of the best in the median of {args.rounds} rounds "
              f"[{min(of_best):.0%}..{max(of_best):.0%}]; the goal is 90 %")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("flood", "estimates", "overload"))
    parser.add_argument("--bin", default=ROOT / "build/release/bin")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--flood", type=int, default=500)
    parser.add_argument("--flood-tokens", type=int, default=32000)
    parser.add_argument("--settle", type=float, default=15, help="seconds of flood before the questions")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=30, help="of each window that is measured")
    parser.add_argument("--rounds", type=int, default=5, help="of the overload: a closed loop and both kinds of it")
    parser.add_argument("--deadline", type=float, default=5)
    parser.add_argument("--obeying", type=int, default=400, help="clients that come again when they are told to")
    parser.add_argument("--server-processors", help="as taskset has them; the clients should have others")
    parser.add_argument("--client-processors", type=int, nargs="*")
    parser.add_argument("--flags", nargs="*", default=[], help="of the server")
    args = parser.parse_args()
    if args.client_processors:
        os.sched_setaffinity(0, args.client_processors)
    args.mix = ("--prompt-tokens=64:0.6,512:0.3,4096:0.1", "--output-tokens=32:1",
                "--strategies=full:1,lm_infinite:1,long_heads:1")
    {"flood": flood, "estimates": estimates, "overload": overload}[args.what](args)


if __name__ == "__main__":
    main()
