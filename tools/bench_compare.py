"""Compares two results of ./dev bench (docs/benchmarks/README.md): a table with ratios.

Judged are shares of what the machine or a peer reached in the same run; with --speeds also speeds, which mean something only
on the same machine while it is quiet. Exit status: 0 nothing is worse by more than the threshold, 1 something is, 2 the files
cannot be compared."""
import argparse
import json
import pathlib
import sys

SCHEMA = 1
# What the machine can do, measured beside the engine.
CEILINGS = {"read_gb_per_s", "fp32_peak_gflop_per_s", "matrix_unit_gflop_per_s"}


class Unusable(Exception):
    pass


def load(path):
    try:
        record = json.loads(pathlib.Path(path).read_text())
        if record["schema"] != SCHEMA:
            raise Unusable(f"{path}: schema {record['schema']}, this program reads {SCHEMA}")
        cases = {}
        for result in record["results"]:
            key = tuple(sorted(result["case"].items()))
            if key in cases:
                raise Unusable(f"{path}: the case {describe(key)} is there twice")
            cases[key] = {name: float(value) for name, value in result["metrics"].items()}
        return record, cases
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"{path}: {type(error).__name__}: {error}") from error


def describe(case):
    values = dict(case)
    name = values.pop("strategy", "")
    return " ".join([name] + [f"{key}={value}" for key, value in values.items()]).strip()


def direction(metric):
    """1: more is better, -1: less is, 0: neither."""
    if metric in CEILINGS:
        return 0
    if metric.endswith(("_per_s", "_share", "_ratio")):
        return 1
    return -1 if metric.endswith(("_bytes", "_seconds", "_ms", "_us")) else 0


def compare(before, after, threshold, speeds=False):
    """[(case, metric, before, after, ratio, verdict)] of what both have; verdict is "worse", "better" or ""."""
    rows = []
    for case in before:
        for metric in before[case]:
            if metric not in after.get(case, {}):
                continue
            a, b = before[case][metric], after[case][metric]
            ratio = b / a if a != 0 else float("nan")
            judged = direction(metric) != 0 and (metric.endswith(("_share", "_ratio")) or speeds)
            gain = ratio if direction(metric) > 0 else 1 / ratio if ratio else float("nan")
            verdict = ""
            if judged and gain < 1 - threshold:
                verdict = "worse"
            elif judged and gain > 1 / (1 - threshold):
                verdict = "better"
            rows.append((case, metric, a, b, ratio, verdict))
    return rows


def title(record):
    changed = " with changes" if record.get("changed") else ""
    cpu = record["machine"]
    return f"{record['commit']}{changed}, {record['date']}, {cpu['cpu']}, {cpu['cpus']} CPUs{', ' + record['note'] if record.get('note') else ''}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="A")
    parser.add_argument("after", metavar="B")
    parser.add_argument("--threshold", type=float, default=0.1, help="part that counts as worse (0.1)")
    parser.add_argument("--speeds", action="store_true", help="judge speeds and sizes, too")
    args = parser.parse_args(arguments)
    try:
        (record_a, before), (record_b, after) = load(args.before), load(args.after)
        rows = compare(before, after, args.threshold, args.speeds)
        if not rows:
            raise Unusable("the files have no case and metric in common")
        print(f"A: {title(record_a)}\nB: {title(record_b)}")
    except (Unusable, KeyError) as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2
    if record_a["machine"] != record_b["machine"]:
        print("not the same machine: compare shares alone")
    print(f"\n{'case':<32} {'metric':<24} {'A':>14} {'B':>14} {'B / A':>8}")
    for case, metric, a, b, ratio, verdict in rows:
        print(f"{describe(case):<32} {metric:<24} {a:>14.6g} {b:>14.6g} {ratio:>8.3f} {verdict}".rstrip())
    worse = sum(row[-1] == "worse" for row in rows)
    missing = len(before.keys() - after.keys())
    print(f"\n{worse} worse by more than {args.threshold:.0%}" + (f"; {missing} cases of A are not in B" if missing else ""))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
