"""Attacks a real server under a memory limit while a well-behaved client uses it (./dev abuse). Exit status 1 when the
server dies, refuses the well-behaved client, or keeps memory, connections or KV cache afterwards."""
import argparse
import pathlib
import resource
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

import attacks  # noqa: E402
from clients import GoodClient, attack_apart, delete_documents, kv_of_documents, p99  # noqa: E402
from running_server import RunningServer  # noqa: E402
from server_process import KV_BYTES, LIMIT_BYTES, Cgroup, Process, fill_cache  # noqa: E402

MIB = 1 << 20
DESCRIPTORS = 4096
SETTLE_SECONDS, SHORT_SETTLE_SECONDS = 30, 5
SHORT, WARM_UP = 0.05, 0.05  # of each flood
LEAST_SECONDS, SHORT_LEAST_SECONDS = 10, 2  # the well-behaved client asks at least so long, alone and beside an attack
MOST_SLOWER = 3  # p99 of the well-behaved client's first tokens, in a full run
MOST_GAPS_OF = {attacks.clients_that_never_read: 1.5}  # p99 between its tokens, beside that alone
# Resident memory afterwards beside that before. 100,000 abandoned requests show what a few bytes of each would become.
MOST_GROWTH, MOST_GROWTH_OF = 1.1, {attacks.abandoned_requests: 1.02}
KV_USED = 'folio_kv_cache_bytes{tier="device",state="used"}'
CLOSED = "folio_connections_closed_total"


def holds_within(condition, seconds):
    """Whether the condition holds at some time from now on."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


class Row:
    """One row of the table. `faults` fail every run, `seen` full runs only: it depends on how busy the machine is."""

    def __init__(self, attack, server, process, scale):
        self.attack, self.server, self.process, self.scale = attack, server, process, scale
        self.least_seconds = LEAST_SECONDS if scale == 1 else SHORT_LEAST_SECONDS
        self.faults, self.seen = [], []

    def measure(self, alone, gap_alone):
        resident, descriptors, before = self.process.resident(), self.process.descriptors(), self.server.metrics()
        self.process.forget_peak()
        started = time.monotonic()
        with GoodClient(self.server.address) as client:
            expected = attack_apart(self.attack, self.server.address, self.server.metrics_url.split("/")[2], self.scale)
            seconds = time.monotonic() - started
            time.sleep(max(0.0, self.least_seconds - seconds))
        if self.server.process.poll() is not None:
            raise RuntimeError(f"{self.attack.__name__}: the server has ended:\n{self.server.log()[-2000:]}")
        peak = self.process.peak()
        self.check_counters(before, expected)
        self.check_client(client, alone, gap_alone)
        if peak > LIMIT_BYTES:
            self.faults.append("more than 1 GiB")
        self.check_rest(resident, descriptors)
        print(f"{self.attack.__name__:22} {seconds:6.1f} s  peak {peak // MIB:4} MiB  resident {resident // MIB:4} -> "
              f"{self.process.resident() // MIB:4} MiB  p99 {1000 * p99(client.times):6.1f} ms = "
              f"{p99(client.times) / alone:4.1f} x alone, worst {1000 * max(client.times, default=0):.1f} ms "
              f"({len(client.times)} answers), gaps {p99(client.gaps) / gap_alone:4.1f} x alone  KV of documents {self.kv >> 10} KiB  "
              f"{'; '.join(self.faults + self.seen) or 'ok'}", flush=True)

    def check_counters(self, before, expected):
        after = self.server.metrics()
        rose = {series: after[series] - before.get(series, 0) for series in after}
        for series, least in expected.items():
            if rose.get(series, 0) < least:
                closed = {name: by for name, by in rose.items() if name.startswith(CLOSED) and by}
                self.faults.append(f"{series} did not rise (closed: {closed})")

    def check_client(self, client, alone, gap_alone):
        if not client.times:
            self.faults.append("the well-behaved client had no answer")
        if client.failures:
            self.seen.append(f"{client.failures} questions of the well-behaved client failed")
        if p99(client.times) > MOST_SLOWER * alone:
            self.seen.append(f"more than {MOST_SLOWER} times slower")
        most = MOST_GAPS_OF.get(self.attack, float("inf"))
        if p99(client.gaps) > most * gap_alone:
            self.seen.append(f"gaps between tokens of more than {most} times those alone")

    def check_rest(self, resident, descriptors):
        """What the attack has taken is given back; the next attack finds every connection free."""
        self.kv = 0

        def kv_is_of_documents():
            self.kv = kv_of_documents(self.server.address)
            return self.server.metrics()[KV_USED] == self.kv

        if not holds_within(kv_is_of_documents, SETTLE_SECONDS):
            self.faults.append(f"{self.server.metrics()[KV_USED]:.0f} bytes of KV used, documents hold {self.kv}")
        delete_documents(self.server.address)
        if not holds_within(lambda: self.server.metrics()["folio_connections"] == 0, SETTLE_SECONDS):
            self.faults.append(f"{self.server.metrics()['folio_connections']:.0f} connections stay")
        most = MOST_GROWTH_OF.get(self.attack, MOST_GROWTH) * resident
        seconds = SETTLE_SECONDS if self.scale == 1 else SHORT_SETTLE_SECONDS
        if not holds_within(lambda: self.process.resident() <= most, seconds):
            self.seen.append("memory stays")
        if not holds_within(lambda: self.process.descriptors() <= descriptors, seconds):
            self.seen.append(f"{self.process.descriptors() - descriptors} descriptors stay")


def warm_up(server, chosen):
    """A little of everything, so that what a server keeps for good, like threads' stacks, is there before the first row."""
    for attack in dict.fromkeys([*chosen, attacks.abandoned_requests]):
        attack_apart(attack, server.address, server.metrics_url.split("/")[2], WARM_UP)
    delete_documents(server.address)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where folio-server and folio lie")
    parser.add_argument("--short", action="store_true", help="a twentieth of each flood, for tests")
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks")
    options = parser.parse_args()
    scale = SHORT if options.short else 1
    chosen = [attack for attack in attacks.ATTACKS if not options.only or attack.__name__ in options.only]
    most = min(DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cgroup = Cgroup()
    flags = [f"--kv-bytes={KV_BYTES}", "--log-level=warning", "--upload-expiry-seconds=3600"]
    faults = []
    try:
        with RunningServer(options.bin, ROOT / "models" / "folio-tiny", *flags) as server:
            process = Process(server.process.pid)
            limited = cgroup.add(server.process.pid)
            print("memory limit: " + ("1 GiB by cgroup" if limited else "none (no cgroup can be made); 1 GiB is asserted"))
            fill_cache(server)
            if not options.short:
                warm_up(server, chosen)
            with GoodClient(server.address) as client:
                time.sleep(SHORT_LEAST_SECONDS if options.short else LEAST_SECONDS)
            alone, gap_alone = p99(client.times), p99(client.gaps)
            print(f"alone: p99 of the time to the first token {1000 * alone:.1f} ms ({len(client.times)} answers), "
                  f"between tokens {1000 * gap_alone:.1f} ms")
            for attack in chosen:
                row = Row(attack, server, process, scale)
                row.measure(alone, gap_alone)
                faults += row.faults if options.short else row.faults + row.seen
            if server.stop(60) != 0:
                faults.append("SIGTERM did not end the server well")
    finally:
        cgroup.remove()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
