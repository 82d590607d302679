"""What Estimate says beside what requests took, as tests/engine/estimate_test.cc compares them."""
import os
import re
import subprocess

from larger import report

GOAL = 2  # per cent
RECEIPTS = 500
LINE = re.compile(r"(\d+) receipts( with a disk)?: at most ([\d.]+) % off")


def measure(bin_dir, _directory, _limits):
    test = subprocess.run([bin_dir / "runtime_tests", "--gtest_filter=*EstimateTest.IsWhatReceiptsSay*"], capture_output=True,
                          text=True, env={**os.environ, "FOLIO_TEST_SLOW": "1"})
    lines = LINE.findall(test.stdout)
    faults = [f"{per_cent} % off, the goal is {GOAL}" for _, _, per_cent in lines if float(per_cent) > GOAL]
    if test.returncode != 0 or [int(count) for count, _, _ in lines] != [RECEIPTS] * 2:
        faults.append(f"the test ended with {test.returncode}")
    figures = "; ".join(f"{count} receipts{disk}: at most {per_cent} % off" for count, disk, per_cent in lines)
    return report("estimate", f"{figures} (goal {GOAL})", faults)
