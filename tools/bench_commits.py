"""Two commits of Folio beside each other (./dev bench --commits A B): both are built in build/commits and their folio-bench
take turns; a table with the ratios of samples taken one after the other. Exit status: 0, 1 if B is slower than --least says
(the median of all ratios of a metric, or every ratio of a case, lies below), 2 if a commit cannot be built or measured."""
import argparse
import pathlib
import statistics
import subprocess
import sys

import interleaved

ROOT = pathlib.Path(__file__).resolve().parent.parent
METRICS = ("decode_tokens_per_s", "prefill_tokens_per_s")
MODEL = "synthetic:tinyllama-1.1b"
# To folio-bench, as they are.
PASSED_ON = ("model", "threads", "strategies", "depths", "prefill_tokens", "weight_dtype", "kv_dtype", "streams", "decode_tokens")


class Unusable(Exception):
    pass


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()[-1000:]
        raise Unusable(f"{' '.join(map(str, command))}: exit status {done.returncode}: {said}")
    return done.stdout.strip()


def build(commit, root=ROOT):
    """folio-bench of a commit, built in a tree of its own; a commit is built once."""
    try:
        full = run("git", "-C", root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    except Unusable as error:
        raise Unusable(f"{commit} is no commit of this clone; a shallow one may lack it") from error
    tree = root / "build" / "commits" / full[:12]
    program = tree / "build" / "bin" / "folio-bench"
    if not program.exists():
        print(f"building {commit} in {tree}", flush=True)
        tree.mkdir(parents=True, exist_ok=True)
        archive = tree / "tree.tar"
        run("git", "-C", root, "archive", f"--output={archive}", full)
        run("tar", "-xf", archive, "-C", tree)
        archive.unlink()
        # The source archives that this clone has fetched, where a commit expects its own.
        archives = tree / "build" / "deps"
        archives.parent.mkdir(exist_ok=True)
        if not archives.is_symlink():
            archives.symlink_to(root / "build" / "deps")
        run("cmake", "-S", tree, "-B", tree / "build", "-G", "Ninja", "-DFOLIO_SERVER=OFF", "-DFOLIO_TESTS=OFF",
            "-DFOLIO_CUDA=OFF")
        run("ninja", "-C", tree / "build", "folio-bench")
    return program


def take_turns(programs, flags, rounds):
    """{(strategy, depth, metric): [[samples of the first program], [of the second]]}"""
    samples = {}
    for number in range(1, rounds + 1):
        for place, program in enumerate(programs):
            for row in interleaved.folio_bench(program, flags)[1]:
                for metric in METRICS:
                    if row.get(metric):
                        samples.setdefault((row["strategy"], row["depth"], metric), [[], []])[place].append(row[metric])
        print(f"round {number} of {rounds}", flush=True)
    return samples


def compare(programs, flags, rounds, least):
    """(lines of a table, what is slower in the second program than `least` of the first)"""
    samples = take_turns(programs, flags, rounds)
    lines = [f"{'strategy':<12} {'depth':>8} {'tokens/s':<9} {'A':<24} {'B':<24} B / A"]
    slower, of_metric = [], {}
    for (strategy, depth, metric), (a, b) in samples.items():
        ratios = interleaved.ratios(b, a)
        of_metric.setdefault(metric, []).extend(ratios)
        what = metric.split("_", maxsplit=1)[0]
        speeds = f"{interleaved.spread(a):<24} {interleaved.spread(b):<24}"
        lines.append(f"{strategy:<12} {depth:>8} {what:<9} {speeds} {interleaved.spread(ratios, 3)}")
        if max(ratios) < least:
            slower.append(f"{what} of {strategy} at {depth}: every ratio is below {least}, the best is {max(ratios):.3f}")
    for metric, ratios in of_metric.items():
        what = metric.split("_", maxsplit=1)[0]
        lines.append(f"{'all':<12} {'':>8} {what:<9} {'':<24} {'':<24} {interleaved.spread(ratios, 3)}")
        if statistics.median(ratios) < least:
            slower.append(f"{what}: the median of all ratios is {statistics.median(ratios):.3f}, below {least}")
    return lines, slower


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="./dev bench --commits", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--strategies", default="full,lm_infinite,long_heads")
    parser.add_argument("--depths", default="0,2048")
    parser.add_argument("--prefill_tokens", default="128")
    parser.add_argument("--weight_dtype", default="auto")
    parser.add_argument("--kv_dtype", default="auto")
    parser.add_argument("--streams", help="decode so many streams in one batch")
    parser.add_argument("--decode_tokens")
    parser.add_argument("--least", type=float, default=0.99, help="part of A's speed that B is to have (%(default)s)")
    interleaved.rounds_argument(parser, 5)
    args = parser.parse_args(arguments)
    interleaved.check_rounds(parser, args.rounds)
    # An older commit may not know a flag that is not wanted.
    wanted = {name: getattr(args, name) for name in PASSED_ON}
    flags = [*(f"--{name}={value}" for name, value in wanted.items() if value is not None), "--rounds=1"]
    try:
        lines, slower = compare([build(commit) for commit in args.commits], flags, args.rounds, args.least)
    except (Unusable, interleaved.BenchFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"A: {args.commits[0]}, B: {args.commits[1]}\n" + "\n".join(lines))
    for line in slower:
        print(f"SLOWER: {line}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
