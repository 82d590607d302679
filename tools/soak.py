"""Runs the random tests again and again, each time with a fresh seed, and the emulated CUDA tests that are too slow
for every run. A failure prints the command that repeats it; exit status 1 then."""
import argparse
import concurrent.futures
import itertools
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ISAS = ["portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"]
SKIPPED = 77

# (program, filter, environment): what draws its numbers from FOLIO_TEST_SEED.
RANDOM = [
    ("emulated_cuda_tests", "*/AttentionParity*", {}),
    ("emulated_cuda_tests", "VerbParity*:Workspace*:AnswerParity*:Scoring*:Evidence*:*Conformance.EqualsFull*", {}),
    *[("engine_tests", "*/AttentionParity*:VerbParity*:*Conformance*:MixedRequests*", {"FOLIO_TEST_ISA": isa})
      for isa in ISAS],
    ("engine_tests", "*EveryIsa*:Scoring*:Evidence*", {}),
    ("engine_tests", "DocumentStoreRandom*:SlotCache*:TieredPages*:WindowMerger*:*SpmBpe*", {}),
    ("runtime_tests", "*", {}),
    ("server_tests", "MixedUploads*", {}),
]


def command(program, tests, environment):
    variables = [f"{name}={value}" for name, value in environment.items()]
    return " ".join([*variables, program, f"--gtest_filter='{tests}'"])


class Soak:
    def __init__(self, bin_dir, minutes, slow):
        self.bin_dir = pathlib.Path(bin_dir)
        self.end = time.monotonic() + 60 * minutes
        self.failed = self.passed = 0
        self.lock = threading.Lock()
        self.slow = [("emulated_cuda_tests", slow, {"FOLIO_TEST_SLOW": "1", "GTEST_TOTAL_SHARDS": "16",
                                                    "GTEST_SHARD_INDEX": str(shard)})
                     for shard in range(16)]

    def jobs(self):
        """The random tests first, then the slow ones among them, then the random ones for as long as is left."""
        yield from RANDOM
        yield from self.slow
        yield from itertools.cycle(RANDOM)

    def run(self, job):
        if time.monotonic() > self.end:
            return
        program, tests, environment = job
        environment = dict(environment, FOLIO_TEST_SEED=str(random.SystemRandom().getrandbits(32)))
        start = time.monotonic()
        done = subprocess.run([str(self.bin_dir / program), f"--gtest_filter={tests}", "--gtest_brief=1"],
                              env=dict(os.environ, **environment), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode == SKIPPED:
            return
        with self.lock:
            verdict = "ok" if done.returncode == 0 else "FAILED"
            print(f"{verdict:>6} {time.monotonic() - start:5.0f} s  {command(program, tests, environment)}", flush=True)
            self.passed += done.returncode == 0
            if done.returncode != 0:
                self.failed += 1
                print(done.stdout[-6000:])
                print(f"again: {command(str(self.bin_dir / program), tests, environment)}", flush=True)

    def run_all(self):
        # One at a time per core: jobs are handed out as others end, until the time is over.
        jobs = self.jobs()

        def worker():
            while time.monotonic() < self.end:
                with self.lock:
                    job = next(jobs)
                self.run(job)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            for future in [pool.submit(worker) for _ in range(os.cpu_count())]:
                future.result()
        return self.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=30)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--slow", required=True, help="filter of the emulated CUDA tests to run once")
    args = parser.parse_args()
    soak = Soak(args.bin, args.minutes, args.slow)
    failed = soak.run_all()
    print(f"{soak.passed} runs passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
