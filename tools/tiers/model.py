"""The cache in tiers beside a plain reference, as tests/engine/kv_model_test.cc compares them."""
import os
import re
import subprocess

from larger import report

SEEDS = 20
LINE = re.compile(r"(\d+) operations, (\d+) slices read, (\d+) lost")


def measure(bin_dir, _directory, _limits):
    operations = slices = lost = 0
    faults = []
    for seed in range(SEEDS):
        test = subprocess.run([bin_dir / "runtime_tests", "--gtest_filter=*KvModel*"], capture_output=True, text=True,
                              env={**os.environ, "FOLIO_TEST_SEED": str(seed)})
        found = LINE.findall(test.stdout)
        if test.returncode != 0 or not found:
            faults.append(f"with seed {seed} the test ended with {test.returncode}")
            continue
        for one in found:
            operations, slices, lost = (total + int(more) for total, more in zip((operations, slices, lost), one))
    figures = (f"{operations} random operations with {SEEDS} seeds, {slices} slices read, none of them wrong; {lost} lost to bytes "
               f"that were flipped, and said to be")
    return report("model", figures, faults)
