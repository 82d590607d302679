"""The pass key tables of models/folio-tiny/README.md, as Markdown: LongHeads, LM-Infinite and full attention on the grass
sentences and on the held-out texts, and LongHeads on the model without the auxiliary losses, with Wilson intervals.

Answers are kept as CSV files in --out; a second run asks only what is not there yet. Hours on two cores.
"""
import argparse
import json
import pathlib

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "models" / "texts"
HELD_OUT = {name: TEXTS / f"{name}.txt" for name in ("ezekiel", "licenses", "manual")}
ALL = {**HELD_OUT, "grass": "grass"}


def numbers(text):
    return [int(number) for number in text.split(",")]


class Card:
    def __init__(self, args):
        self.args = args

    def cells(self, server, name, seed, trials, lengths, strategy, filler):
        """{tokens: cell} of one row, as `folio eval` summarises it."""
        path = self.args.out / f"{name}-{strategy}-{pathlib.Path(filler).stem}-seed{seed}.csv"
        done = server.folio("--json", "eval", "passkey", "--strategies", strategy, "--filler", filler, "--seed", seed,
                            "--trials", trials, "--lengths", ",".join(map(str, lengths)), "--concurrency", 2,
                            "--output", path, "--resume")
        if done.returncode:
            raise SystemExit(done.stderr)
        summary = json.loads(done.stdout.splitlines()[-1])["summary"]
        return [cell for cell in summary["cells"] if cell["strategy"] == strategy]

    def table(self, title, name, seed, trials, lengths, rows):
        """Measures rows (strategy, filler name) of the model `name` and prints them."""
        print(f"\n{title}: seed {seed}, {trials} trials per cell\n")
        print("| strategy | filler | " + " | ".join(f"{n}x" for n in lengths) + " |")
        print("|---" * (len(lengths) + 2) + "|")
        model = getattr(self.args, name)
        with RunningServer(self.args.bin, model, "--kv-bytes=4000000000") as server:
            for strategy, filler in rows:
                print(f"| {strategy} | {filler} | ", end="", flush=True)
                cells = self.cells(server, name, seed, trials, lengths, strategy, ALL[filler])
                print_cells(cells)


def print_cells(cells):
    percents = ((100 * cell[key] for key in ("accuracy", "accuracy_low", "accuracy_high")) for cell in cells)
    print(" | ".join("{:.0f} ({:.0f}-{:.0f})".format(*each) for each in percents), "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--model", default=str(ROOT / "models" / "folio-tiny"))
    parser.add_argument("--noaux", help="directory of the model without the auxiliary losses (train.sh writes it)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "model_card")
    parser.add_argument("--only", nargs="*", default=[], help="parts: long_heads, noaux, second_seed, others")
    parser.add_argument("--trials", type=int, default=50, help="per cell of long_heads, noaux and second_seed")
    parser.add_argument("--side-trials", type=int, default=20, help="per cell of others")
    parser.add_argument("--lengths", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    card = Card(args)
    long_heads = [("long_heads", text) for text in HELD_OUT]
    parts = {
        "long_heads": lambda: card.table("LongHeads", "model", 1, args.trials, args.lengths,
                                         [*long_heads, ("long_heads", "grass")]),
        "noaux": lambda: card.table("LongHeads on the model without the auxiliary losses", "noaux", 1, args.trials,
                                    args.lengths[::2], long_heads),
        "second_seed": lambda: card.table("LongHeads", "model", 2, args.trials, args.lengths, long_heads),
        "others": lambda: [
            card.table("LM-Infinite", "model", 1, args.side_trials, args.lengths, [("lm_infinite", text) for text in ALL]),
            card.table("Full attention", "model", 1, args.side_trials, args.lengths[:4], [("full", text) for text in ALL])],
    }
    for name in args.only or parts:
        if name != "noaux" or args.noaux:
            parts[name]()


if __name__ == "__main__":
    main()
