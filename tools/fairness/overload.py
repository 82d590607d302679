"""Goodput when ten times as many requests come as can be served, and clients that come again when they are told to."""
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time

from callers import ASKER, Caller, ask, question, server_of

CONNECTIONS = 8  # one has 256 calls at a time
MIX = ("--prompt-tokens=64:0.6,512:0.3,4096:0.1", "--output-tokens=32:1",
       "--strategies=full:1,lm_infinite:1,long_heads:1")


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
        result = load_test(args, server, *flags, f"--duration={length}", *MIX, seconds=length + extra + 60)
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
        load_test(args, server, "--concurrency=16", "--num-requests=50", *MIX)  # warms up
        for _ in range(args.rounds):
            best, _ = measured(args, server, "--concurrency=64")
            print(f"best: {best:.1f} requests/s in a closed loop; resident {resident(server):.0f} MiB", flush=True)
            for name, deadline in deadlines.items():
                parts[name].append(flooded(args, server, name, deadline, best))
        obeyed(args, server, best)
    for name, of_best in parts.items():
        print(f"{name}: {statistics.median(of_best):.0%} of the best in the median of {args.rounds} rounds "
              f"[{min(of_best):.0%}..{max(of_best):.0%}]; the goal is 90 %")
