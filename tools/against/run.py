"""Folio beside the programs of its peers on this machine (./dev bench --against DIR): rounds in which folio-bench and each
llama-bench in DIR take turns, a table with the goals, and the same as JSON (docs/benchmarks/README.md, which also says how
DIR is made). Exit status: 0, 1 if a program failed, 2 if there is nothing to compare with."""
import argparse
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

import bench  # noqa: E402
import gguf_models  # noqa: E402
import interleaved  # noqa: E402
import llama_bench  # noqa: E402
from rows import ROWS, SPEEDS  # noqa: E402


class Results:
    """Samples of one row, a place for each round."""

    def __init__(self, row):
        self.row = row
        self.folio = []  # metrics of folio-bench
        self.peers = {}  # {name: {variant: [tokens per second]}}
        self.failed = set()  # names of peers without a variant that ran in every round
        self.errors = []  # what failed, also where another variant of the peer ran

    def speeds(self):
        return [sample[SPEEDS[self.row.what]] for sample in self.folio]

    def median(self, metric):
        return statistics.median(sample[metric] for sample in self.folio)

    def best_variant(self, peer):
        """The variant of the highest median."""
        variants = self.peers[peer]
        return max(variants, key=lambda variant: statistics.median(variants[variant]))

    def best_samples(self, peer):
        return self.peers[peer][self.best_variant(peer)]

    def best_peer(self):
        """Of those that finished every round."""
        names = [name for name in self.peers if name not in self.failed]
        return max(names, key=lambda name: statistics.median(self.best_samples(name)), default=None)

    def ratio(self):
        """To the better peer: the median of the rounds' ratios, or None."""
        peer = self.best_peer()
        return statistics.median(interleaved.ratios(self.speeds(), self.best_samples(peer))) if peer else None

    def verdict(self):
        row, ratio = self.row, self.ratio()
        if row.ratio is None and row.share is None:
            return ""
        if row.ratio is not None and ratio is None:
            return "no peer"
        reached = (row.ratio is None or ratio >= row.ratio) and (row.share is None or self.median(row.ceiling.share) >= row.share)
        return "reached" if reached else "missed"


def measure_peer(results, program):
    """One turn of a peer. In the first round it runs every variant, from then on its best one."""
    name = program.peer.name
    if name in results.failed:
        return
    mine = results.peers.setdefault(name, {})
    first = not mine
    for variant in program.peer.variants(results.row) if first else list(mine):
        try:
            speed = program.tokens_per_s(results.row, variant)
        except llama_bench.PeerFailed as error:
            results.errors.append(f"{name}, {variant}: {error}")
            print(f"  {name}, {variant} failed: {error}", flush=True)
            if not first:
                results.failed.add(name)
            continue
        mine.setdefault(variant, []).append(speed)
        print(f"  {name}, {variant}: {speed:.2f}", flush=True)
    if not mine:
        results.failed.add(name)
    elif first:
        best = results.best_variant(name)
        results.peers[name] = {best: mine[best]}


def measure(args, rows, programs):
    found, run = {row.name: Results(row) for row in rows}, {}
    for number in range(1, args.rounds + 1):
        for program in programs:
            program.new_round()
        for row in rows:
            flags = [f"--model={args.model}", f"--threads={args.threads}", *row.folio_flags()]
            run, (sample,) = interleaved.folio_bench(args.bin / "folio-bench", flags)
            del run["weights"]  # each row has its own
            results = found[row.name]
            results.row = row.on_machine_of(sample)
            results.folio.append(sample)
            print(f"round {number}, {row.name}: {results.speeds()[-1]:.2f} tokens/s", flush=True)
            for program in programs:
                measure_peer(results, program)
    return run, list(found.values())


def cell(results, peer):
    if peer in results.failed:
        return "failed"
    return f"{interleaved.spread(results.best_samples(peer))} {results.best_variant(peer)}"


def table(found, peers):
    lines = [["row", "Folio tokens/s", *peers, "ratio", "share", "of", "goal", ""]]
    for results in found:
        row, ratio = results.row, results.ratio()
        lines.append([row.name, interleaved.spread(results.speeds()), *(cell(results, peer) for peer in peers),
                      "-" if ratio is None else f"{ratio:.2f}", f"{results.median(row.ceiling.share):.2f}",
                      f"{results.median(row.ceiling.metric):.1f} {row.ceiling.unit}", row.goal(), results.verdict()])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def result_entry(results):
    row = results.row
    also = (row.ceiling.share, row.ceiling.metric)
    metrics = {name: results.median(name) for name in results.folio[0] if name.startswith(row.what) or name in also}
    entry = {"case": row.case(), "metrics": metrics, "samples": {"folio": results.speeds()}, "goal": row.goal()}
    if (ratio := results.ratio()) is not None:
        metrics["peer_ratio"] = round(ratio, 3)
        entry["best_peer"] = results.best_peer()
    for peer in sorted(results.peers.keys() - results.failed):
        entry["samples"][peer] = [round(speed, 3) for speed in results.best_samples(peer)]
        entry.setdefault("formats", {})[peer] = str(results.best_variant(peer))
    if results.errors:
        entry["errors"] = results.errors
    return entry


def parse(arguments):
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(prog="./dev bench --against", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", metavar="DIR", type=pathlib.Path)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"rows to measure: {', '.join(names)} (default: all)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--model", default="synthetic:tinyllama-1.1b", help="what folio-bench runs; the shape of the GGUF files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--direct", type=int, default=llama_bench.DIRECT, metavar="DEPTH",
                        help="depth up to which the peers read a whole prompt; beyond, their time is put together (%(default)s)")
    parser.add_argument("--note", default="", help="what else the machine did, for the JSON")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file; default build/bench/DATE-COMMIT-against.json")
    interleaved.rounds_argument(parser, 3)
    args = parser.parse_args(arguments)
    interleaved.check_rounds(parser, args.rounds)
    if unknown := sorted(set(args.rows) - set(names)):
        parser.error(f"no row is named {', '.join(unknown)}; there are {', '.join(names)}")
    return args


def main(arguments=None):
    args = parse(arguments)
    rows = [row for row in ROWS if not args.rows or row.name in args.rows]
    peers, absent = llama_bench.found(args.directory)
    for line in absent:
        print(line)
    missing = [str(path) for path, _, _ in gguf_models.files(args.directory) if not path.is_file()]
    if not peers or missing:
        wanting = f"there is no {', '.join(missing)}; ./dev bench-models writes it" if peers else "no peer to compare with"
        print(f"bench: {wanting}", file=sys.stderr)
        return 2
    programs = [llama_bench.LlamaBench(peer, args.directory, args.threads, args.direct) for peer in peers]
    measured_tree = bench.tree()
    try:
        run, found = measure(args, rows, programs)
    except interleaved.BenchFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n" + table(found, [peer.name for peer in peers]))
    command = f"./dev bench --against DIR {' '.join(args.rows)} --rounds={args.rounds} --direct={args.direct}".replace("  ", " ")
    record = bench.record(measured_tree, args.bin, command, run, args.note, [result_entry(results) for results in found])
    record["peers"] = {program.peer.name: program.build for program in programs}
    bench.write(record, args.output, "-against")
    errors = [f"{results.row.name}: {error}" for results in found for error in results.errors]
    for line in errors:
        print(f"FAILED: {line}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
