"""How far the engine is from Hugging Face transformers, and under LM-Infinite and LongHeads from float64 numpy, on the small
random checkpoints of tests/golden: the largest difference of a logit, by family and dtype, as a Markdown table (docs/models.md).
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
# Tests that leave properties: model (below tests/golden), strategy, worst_error.
FILTER = "Golden/TransformersLogits.AreEqual/*:Golden/FamilyLogits*:Golden/ReferenceAttention*"
STRATEGIES = ["full", "lm_infinite", "long_heads"]


def measurements(tests):
    """What the tests have left: dictionaries of strings."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = [tests, f"--gtest_filter={FILTER}", "--gtest_brief=1", f"--gtest_output=json:{report}"]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if run.returncode != 0:
            sys.exit(run.stdout + f"{tests} failed")
        suites = json.loads(report.read_text())["testsuites"]
    return [test for suite in suites for test in suite["testsuite"] if "worst_error" in test]


def dtypes(directory):
    """'fp32', or 'bf16 and fp32' where files mix them."""
    names = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
    found = set()
    for file in directory.glob("model*.safetensors"):
        data = file.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        found |= {names[tensor["dtype"]] for name, tensor in header.items() if name != "__metadata__"}
    return " and ".join(sorted(found))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", default=ROOT / "build/release/bin/engine_tests", help="the program of the engine's tests")
    worst = collections.defaultdict(dict)
    for test in measurements(parser.parse_args().tests):
        directory = GOLDEN / test["model"]
        config = json.loads((directory / "config.json").read_text())
        if "coca_q" in config:
            continue
        row = worst[config["architectures"][0], dtypes(directory)]
        strategy, error = test["strategy"], float(test["worst_error"])
        row[strategy] = max(error, row.get(strategy, 0.0))
    print("| family | dtype |", " | ".join(f"`{strategy}`" for strategy in STRATEGIES), "|")
    print("|---|---|" + "---|" * len(STRATEGIES))
    for (family, dtype), errors in sorted(worst.items()):
        cells = [f"{errors[strategy]:.1e}" if strategy in errors else "" for strategy in STRATEGIES]
        print(f"| {family} | {dtype} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
