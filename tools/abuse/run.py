"""Attacks a real server under a memory limit while a well-behaved client uses it (./dev abuse). Exit status 1 when the
server dies, refuses the well-behaved client, or keeps memory or descriptors afterwards."""
import argparse
import contextlib
import multiprocessing
import os
import pathlib
import re
import resource
import statistics
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

import attacks  # noqa: E402
import raw_http2 as h2  # noqa: E402
from running_server import RunningServer  # noqa: E402

MIB = 1 << 20
LIMIT_BYTES = 1024 * MIB
DESCRIPTORS = 4096
SETTLE_SECONDS, SHORT_SETTLE_SECONDS = 30, 5
FILL_BYTES = 95_000  # of text, whose tokens nearly fill the KV cache
LEAST_SECONDS = 2  # the well-behaved client asks at least so long
MOST_SLOWER = 3  # p99 of the well-behaved client, in a full run
DELTA = 6
QUESTION = h2.field(2, "Here is a question that is short.") + h2.field(7, h2.field(1, 8) + h2.field(4, 1))


class Cgroup:
    """1 GiB for a process where this one may make cgroups (v1 or v2); else only measured."""

    def __init__(self):
        for base, file in ((pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                           (pathlib.Path("/sys/fs/cgroup"), "memory.max")):
            directory = base / f"folio-abuse-{os.getpid()}"
            with contextlib.suppress(OSError):
                directory.mkdir()
                with contextlib.suppress(OSError):
                    (directory / file).write_text(str(LIMIT_BYTES))
                    self.directory = directory
                    return
                directory.rmdir()
        self.directory = None

    def add(self, pid):
        """Whether the process is limited from now on."""
        if self.directory is None:
            return False
        with contextlib.suppress(OSError):
            (self.directory / "cgroup.procs").write_text(str(pid))
            return True
        return False

    def remove(self):
        if self.directory is not None:
            with contextlib.suppress(OSError):
                self.directory.rmdir()


class Process:
    """What the kernel says of the server."""

    def __init__(self, pid):
        self.directory = pathlib.Path(f"/proc/{pid}")

    def _status(self, name):
        match = re.search(rf"^{name}:\s+(\d+) kB", (self.directory / "status").read_text(), re.M)
        return int(match.group(1)) * 1024

    def resident(self):
        return self._status("VmRSS")

    def peak(self):
        return self._status("VmHWM")

    def forget_peak(self):
        with contextlib.suppress(OSError):  # then the peak is that of all attacks so far
            (self.directory / "clear_refs").write_text("5")

    def descriptors(self):
        return len(list((self.directory / "fd").iterdir()))


def ask(address):
    """Seconds to the first token of one short question, on a connection of its own."""
    start, first = time.monotonic(), None
    one = h2.Connection(address, source=("127.0.0.9", 0))
    try:
        for event in one.call("/folio.v1.Inference/Generate", QUESTION, timeout=30):
            if first is None and DELTA in h2.fields_of(event):
                first = time.monotonic() - start
    finally:
        one.close()
    if first is None:
        raise h2.Closed
    return first


def keep_asking(address, stop, answers):
    times, failures = [], 0
    while not stop.is_set():
        try:
            times.append(ask(address))
        except (h2.Closed, OSError):
            failures += 1
        time.sleep(0.02)
    answers.put((times, failures))


class GoodClient:
    """A well-behaved client in a process of its own: one question after the other."""

    def __init__(self, address):
        self.stop_asking, self.answers = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=keep_asking, args=(address, self.stop_asking, self.answers))

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop_asking.set()
        self.times, self.failures = self.answers.get()
        self.process.join()

    def p99(self):
        return statistics.quantiles(self.times, n=100)[98] if len(self.times) > 1 else float("nan")


def fill_cache(server):
    """Has most of the KV cache used once, so that the system has given all of its memory."""
    text = (ROOT / "models" / "texts" / "ezekiel.txt").read_text()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text[:FILL_BYTES])
        file.flush()
        for command in (["upload", file.name, "--id", "fill"], ["docs", "delete", "fill"]):
            done = server.folio(*command)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)


def metrics(server):
    with urllib.request.urlopen(server.metrics_url, timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def settle(process, resident, descriptors, seconds):
    """Waits until memory and descriptors are what they were; what they are then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.descriptors() <= descriptors and process.resident() <= 1.1 * resident:
            break
        time.sleep(0.2)
    return process.resident(), process.descriptors()


def run(attack, server, process, alone, scale):
    """One row of the table; the faults that were seen. A short run shows but does not judge what depends on how busy
    the machine is."""
    faults, seen = [], []
    resident, descriptors, before = process.resident(), process.descriptors(), metrics(server)
    process.forget_peak()
    metrics_address = server.metrics_url.split("/")[2]
    started = time.monotonic()
    with GoodClient(server.address) as client:
        expected = attack(server.address, metrics_address, scale)
        seconds = time.monotonic() - started
        time.sleep(max(0.0, LEAST_SECONDS - seconds))
    if server.process.poll() is not None:
        raise RuntimeError(f"{attack.__name__}: the server has ended:\n{server.log()[-2000:]}")
    peak = process.peak()
    after_resident, after_descriptors = settle(process, resident, descriptors,
                                                SETTLE_SECONDS if scale == 1 else SHORT_SETTLE_SECONDS)
    after = metrics(server)
    for series, least in expected.items():
        if after.get(series, 0) - before.get(series, 0) < least:
            faults.append(f"{series} did not rise")
    if not client.times:
        faults.append("the well-behaved client had no answer")
    if peak > LIMIT_BYTES:
        faults.append("more than 1 GiB")
    if client.failures:
        seen.append(f"{client.failures} questions of the well-behaved client failed")
    if client.p99() > MOST_SLOWER * alone:
        seen.append(f"more than {MOST_SLOWER} times slower")
    if after_resident > 1.1 * resident:
        seen.append("memory stays")
    if after_descriptors > descriptors:
        seen.append(f"{after_descriptors - descriptors} descriptors stay")
    print(f"{attack.__name__:22} {seconds:6.1f} s  peak {peak // MIB:4} MiB  resident {resident // MIB:4} -> "
          f"{after_resident // MIB:4} MiB  p99 {1000 * client.p99():6.1f} ms = {client.p99() / alone:4.1f} x alone "
          f"({len(client.times)} answers)  {'; '.join(faults + seen) or 'ok'}", flush=True)
    return faults + seen if scale == 1 else faults


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where folio-server and folio lie")
    parser.add_argument("--short", action="store_true", help="a twentieth of each flood, for tests")
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks")
    options = parser.parse_args()
    scale = 0.05 if options.short else 1
    most = min(DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cgroup = Cgroup()
    flags = ["--kv-bytes=128MiB", "--log-level=warning", "--upload-expiry-seconds=3600"]
    faults = []
    try:
        with RunningServer(options.bin, ROOT / "models" / "folio-tiny", *flags) as server:
            process = Process(server.process.pid)
            limited = cgroup.add(server.process.pid)
            print("memory limit: " + ("1 GiB by cgroup" if limited else "none (no cgroup can be made); 1 GiB is asserted"))
            fill_cache(server)
            with GoodClient(server.address) as client:
                time.sleep(2 if options.short else 10)
            alone = client.p99()
            print(f"alone: p99 of the time to the first token {1000 * alone:.1f} ms ({len(client.times)} answers)")
            for attack in attacks.ATTACKS:
                if not options.only or attack.__name__ in options.only:
                    faults += run(attack, server, process, alone, scale)
            if server.stop(60) != 0:
                faults.append("SIGTERM did not end the server well")
    finally:
        cgroup.remove()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
