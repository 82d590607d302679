"""Decoding under a CPU quota, as a container has one, beside the same without (./dev bench --quota PERCENT): folio-bench takes
turns in a control group of that quota and outside of it. Prints the part of the speed that is left, by all tokens, and how
much longer than the median the longest token took. Exit status: 0, 1 if a goal is missed, 2 if there is no such group to be
had (it takes the right to make one) or a program failed."""
import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import tempfile

import interleaved

ROOT = pathlib.Path(__file__).resolve().parent.parent
CGROUPS = pathlib.Path("/sys/fs/cgroup")
PERIOD_US = 100_000
GOAL_SPEED, GOAL_STALL_MS = 0.70, 100


class NoQuota(Exception):
    pass


@contextlib.contextmanager
def group_of_quota(percent, cgroups=CGROUPS):
    """The file that takes the processes of a new control group (v1 or v2) of this quota."""
    v1 = cgroups / "cpu"
    group = (v1 if v1.is_dir() else cgroups) / f"folio-bench-{os.getpid()}"
    quota = PERIOD_US * percent // 100
    try:
        group.mkdir()
    except OSError as error:
        raise NoQuota(f"{group} cannot be made: {error.strerror}") from error
    try:
        if v1.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")
        yield group / "cgroup.procs"
    except OSError as error:
        raise NoQuota(f"{error.filename or group} takes no quota: {error.strerror}") from error
    finally:
        group.rmdir()


def inside(program, processes, directory):
    """A program that runs `program` in the group."""
    script = pathlib.Path(directory) / "inside"
    script.write_text(f'#!/bin/sh\necho $$ >"{processes}" && exec "{program}" "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def stall_ms(row):
    return row["decode_longest_ms"] - 1000 / row["decode_tokens_per_s"]


def measure(program, flags, percent, rounds):
    """[(row outside, row inside)]"""
    pairs = []
    with tempfile.TemporaryDirectory() as directory, group_of_quota(percent) as processes:
        limited = inside(program, processes, directory)
        for number in range(1, rounds + 1):
            pairs.append(tuple(interleaved.folio_bench(each, flags)[1][0] for each in (program, limited)))
            outside, within = pairs[-1]
            print(f"round {number}: {outside['decode_mean_tokens_per_s']:.2f} tokens/s, {within['decode_mean_tokens_per_s']:.2f} "
                  f"with {percent} %", flush=True)
    return pairs


def report(pairs, percent):
    """(lines, whether the goals are reached)"""
    ratios = [within["decode_mean_tokens_per_s"] / outside["decode_mean_tokens_per_s"] for outside, within in pairs]
    free, stalls = [max(stall_ms(pair[place]) for pair in pairs) for place in (0, 1)]
    lines = [f"speed with a quota of {percent} %: {interleaved.spread(ratios)} of that without; goal {GOAL_SPEED}",
             f"longest token beyond the median: {stalls:.0f} ms, without a quota {free:.0f} ms; goal {GOAL_STALL_MS} ms"]
    return lines, statistics.median(ratios) >= GOAL_SPEED and stalls <= GOAL_STALL_MS


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="./dev bench --quota", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("percent", nargs="?", type=int, default=150, help="of one CPU (%(default)s)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--weight_dtype", default="int4")
    interleaved.rounds_argument(parser, 3)
    args = parser.parse_args(arguments)
    interleaved.check_rounds(parser, args.rounds)
    flags = [f"--model={args.model}", f"--threads={args.threads}", f"--weight_dtype={args.weight_dtype}", "--strategies=full",
             "--depths=0", "--prefill_tokens=0", "--decode_tokens=128", "--rounds=2"]
    try:
        lines, reached = report(measure(args.bin / "folio-bench", flags, args.percent, args.rounds), args.percent)
    except (NoQuota, interleaved.BenchFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
