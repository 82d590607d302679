"""A server at 70 % of what it can, for hours: two tenants ask, a third uploads, asks many questions, scores, leaves uploads and
answers half-way and deletes, all over TLS. Every 30 s memory, descriptors, threads, KV cache and the 99th percentile of the
first token are noted. SIGTERM ends it early. Exit status 1 when a call fails, something is left behind, or memory or latency has
grown beyond noise; the report is written either way (./dev soak-service)."""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.append(str(HERE / "abuse"))

from certificates import make_certificate  # noqa: E402
from demo import MODEL, TEXT  # noqa: E402
from running_server import RunningServer, wait_for  # noqa: E402
from server_process import KV_BYTES, Process, fill_cache  # noqa: E402
from trend import trend  # noqa: E402

LOAD = 0.7  # of what was measured first
ASKERS, KEEPER = ("asker-1", "asker-2"), "keeper"
MIX = ("--prompt-tokens=32:0.6,256:0.3,2000:0.1", "--output-tokens=16:0.7,64:0.3",
       "--strategies=full:1,lm_infinite:1,long_heads:1", "--sampled-fraction=0.3")
CANCELLED = ("--cancel-fraction=0.1", "--cancel-delay=0.5")
CAPACITY_SECONDS = 20
WARM_UP = 0.2  # of the samples, which the trends leave out
KV_USED = 'folio_kv_cache_bytes{tier="device",state="used"}'
# What must not grow, and how much of its mean is noise: gRPC has a thread, and clients a connection, more or less.
TOLERANCES = {"resident_mib": 0.02, "descriptors": 0.1, "threads": 0.1, "first_token_p99_ms": 0.1, "gap_p99_ms": 0.1}


class Tenants:
    """Files of a server with TLS and a tenant for each name."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        make_certificate(self.directory, "server", "DNS:localhost,IP:127.0.0.1")
        tenants = {}
        for name in (*ASKERS, KEEPER):
            (self.directory / name).write_text(f"token of {name}\n")
            tenants[name] = {"token_sha256": [hashlib.sha256(f"token of {name}".encode()).hexdigest()]}
        (self.directory / "tenants.json").write_text(json.dumps({"tenants": tenants}))
        os.environ["FOLIO_TLS_CA"] = str(self.directory / "server.pem")
        os.environ["FOLIO_TOKEN_FILE"] = self.token(KEEPER)

    def token(self, name):
        return str(self.directory / name)

    def flags(self):
        return (f"--tls-cert={self.directory / 'server.pem'}", f"--tls-key={self.directory / 'server.key'}",
                f"--tenants={self.directory / 'tenants.json'}")


def load_test(server, tenants, name, *flags):
    """The report of folio-loadtest, as one tenant."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([server.bin_dir / "folio-loadtest", f"--server={server.address}", f"--token-file={tenants.token(name)}",
                        f"--output={file.name}", *MIX, *flags], stdout=subprocess.DEVNULL, check=False)  # failures are counted
        return json.loads(pathlib.Path(file.name).read_text())


class Keeper(threading.Thread):
    """The tenant with documents, until it is told to stop: one thing after the other."""

    def __init__(self, server, directory):
        super().__init__()
        self.server, self.stopping, self.rounds, self.failures = server, threading.Event(), 0, []
        self.rng, self.verses = random.Random(7), TEXT.read_text().splitlines()
        self.path = pathlib.Path(directory) / "document.txt"

    def folio(self, *args):
        done = self.server.folio(*args)
        if done.returncode != 0:
            self.failures.append(f"folio {' '.join(map(str, args))}: {done.stderr.strip()}")

    def leave(self, *args):
        """Starts something and is gone before its end, most of the time."""
        left = self.server.start_folio(*args)
        with contextlib.suppress(subprocess.TimeoutExpired):
            left.communicate(timeout=self.rng.uniform(0.05, 0.5))
        left.send_signal(self.rng.choice((signal.SIGINT, signal.SIGKILL)))
        left.communicate()

    def round(self):
        name = f"document-{self.rounds}"
        self.path.write_text("\n".join(self.rng.sample(self.verses, self.rng.randrange(50, 120))))
        self.folio("upload", self.path, "--id", name, "--strategy", self.rng.choice(("full", "long_heads", "lm_infinite")))
        self.folio("ask", "--document", name, "--question", "Who was there?", "--max-new-tokens", 16)
        self.folio("ask", "--document", name, "--question", "Who?", "--question", "Where?", "--question", "When?",
                   "--answers", 2, "--temperature", 1, "--max-new-tokens", 16)
        self.folio("score", self.path, "--strategy", "lm_infinite")
        self.leave("ask", "--document", name, "--question", "What came to pass?", "--max-new-tokens", 4000, "--ignore-eos")
        self.leave("upload", self.path, "--id", f"{name}-left")
        self.folio("docs", "delete", name)
        if f"{name}-left" in self.documents():
            self.folio("docs", "delete", f"{name}-left")
        self.rounds += 1

    def documents(self):
        listed = self.server.folio("--json", "docs", "list")
        return [json.loads(line)["document_id"] for line in listed.stdout.splitlines()]

    def run(self):
        while not self.stopping.is_set():
            self.round()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.join()


def both(server, tenants, *flags):
    """Reports of both askers at the same time."""
    reports = {}

    def one(name):
        reports[name] = load_test(server, tenants, name, f"--seed={random.randrange(1 << 30)}", *flags)
    threads = [threading.Thread(target=one, args=(name,)) for name in ASKERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [reports[name] for name in ASKERS]


def sample(server, process, reports, seconds):
    metrics = server.metrics()
    return {"seconds": seconds, "resident_mib": process.resident() / 2**20, "descriptors": process.descriptors(),
            "threads": process.threads(), "kv_used_bytes": metrics[KV_USED], "connections": metrics["folio_connections"],
            "gap_p99_ms": max(report["p99_itl_ms"] for report in reports),
            "first_token_p99_ms": max(report["p99_ttft_ms"] for report in reports),
            "completed": sum(report["completed"] for report in reports),
            "failed": sum(report["failed"] for report in reports)}


def soak(args, server, tenants, directory):
    process, samples = Process(server.process.pid), []
    with Keeper(server, directory) as keeper:
        best = sum(report["request_throughput"] for report in
                   both(server, tenants, "--concurrency=16", f"--duration={args.capacity_seconds}"))
        rate = LOAD * best / len(ASKERS)
        start = time.monotonic()
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        while time.monotonic() - start < 60 * args.minutes and not ended.is_set():
            reports = both(server, tenants, f"--rate={rate}", f"--duration={args.every}", *CANCELLED)
            samples.append(sample(server, process, reports, time.monotonic() - start))
            print("  ".join(f"{name} {value:.0f}" for name, value in samples[-1].items()), flush=True)
    faults = list(keeper.failures)
    wait_for(lambda: server.metrics()["folio_num_requests_running"] == 0, "nothing runs", 60)
    for name in keeper.documents():
        keeper.folio("docs", "delete", name)
    try:
        wait_for(lambda: server.metrics()[KV_USED] == 0, "no KV is in use", 60)
    except AssertionError as error:
        faults.append(str(error))
    return {"minutes": round(samples[-1]["seconds"] / 60, 1), "load": LOAD, "capacity_requests_per_second": best,
            "rounds_of_documents": keeper.rounds, "samples": samples, "faults": faults}


def judge(result):
    """Adds the trend of what must not grow, and what has."""
    settled = result["samples"][int(WARM_UP * len(result["samples"])):]
    if len(settled) < 3:
        result["faults"].append("too few samples for a trend")
        return
    times = [one["seconds"] for one in settled]
    result["trends"] = {}
    for name, tolerance in TOLERANCES.items():
        line = trend(times, [one[name] for one in settled])
        result["trends"][name] = {"mean": line.mean, "growth": line.growth, "least": line.least, "most": line.most,
                                  "within_noise": line.within_noise(tolerance)}
        if not line.within_noise(tolerance):
            result["faults"].append(f"{name} has grown by {line.growth:.1f} of {line.mean:.1f}")
    failed = sum(one["failed"] for one in result["samples"])
    if failed:
        result["faults"].append(f"{failed} requests failed")


def markdown(result):
    lines = [f"Commit {result['commit']}, {result['minutes']:g} minutes at {100 * LOAD:.0f} % of "
             f"{result['capacity_requests_per_second']:.1f} requests/s: {sum(one['completed'] for one in result['samples'])} "
             f"answers, {result['rounds_of_documents']} documents uploaded, asked, scored and deleted.", "",
             "| what | mean | growth over the run | 95 % confidence |", "|---|---|---|---|"]
    for name, line in result.get("trends", {}).items():
        lines.append(f"| {name.replace('_', ' ')} | {line['mean']:.1f} | {line['growth']:+.2f} | "
                     f"{line['least']:+.2f} to {line['most']:+.2f} |")
    lines += ["", *(f"- {fault}" for fault in result["faults"] or ["nothing failed, and nothing was left behind"])]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="./dev soak-service", description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--every", type=float, default=30, help="seconds between samples")
    parser.add_argument("--capacity-seconds", type=float, default=CAPACITY_SECONDS)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/soak", help="where service.json and service.md go")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.strip()  # before others are made
    with tempfile.TemporaryDirectory(prefix="folio-soak-") as directory:
        tenants = Tenants(directory)
        with RunningServer(args.bin, MODEL, f"--kv-bytes={KV_BYTES}", "--log-level=warning", *tenants.flags()) as server:
            fill_cache(server)
            result = soak(args, server, tenants, directory)
            if server.stop() != 0:
                result["faults"].append("SIGTERM did not end the server well")
    judge(result)
    result["commit"] = commit
    (args.out / "service.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "service.md").write_text(markdown(result))
    print(markdown(result))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
