"""Documents larger than memory, and documents that outlive the server (./dev tiers): each row beside its goal, and beside
what the disk can do. `./dev tiers NAME` measures one row. Exit status 1 when an answer differs, memory exceeds its
budget, or something is left behind."""
import argparse
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

import crash  # noqa: E402
import disk  # noqa: E402
import estimate  # noqa: E402
import larger  # noqa: E402
import model  # noqa: E402
import policy  # noqa: E402
import resident  # noqa: E402
import restart  # noqa: E402
import save  # noqa: E402
import stream  # noqa: E402
import synthetic  # noqa: E402

ROWS = {"larger": larger.measure, "stream": stream.measure, "cold": synthetic.measure_cold,
        "beyond": synthetic.measure_beyond, "policy": policy.measure, "restart": restart.measure,
        "save": save.measure, "crash": crash.measure, "model": model.measure, "estimate": estimate.measure,
        "resident": resident.measure}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="NAME", help=f"rows to measure: {', '.join(ROWS)} (default: all)")
    parser.add_argument("--bin", default=ROOT / "build" / "release" / "bin", type=pathlib.Path)
    parser.add_argument("--dir", type=pathlib.Path, help="directory on the disk that is to be measured (default: a temporary one)")
    args = parser.parse_args()
    unknown = set(args.rows) - set(ROWS)
    if unknown:
        parser.error(f"no row is named {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    with tempfile.TemporaryDirectory(prefix="folio-tiers-", dir=args.dir) as directory:
        limits = disk.measure(pathlib.Path(directory))
        print(f"disk: {limits}", flush=True)
        faults = []
        for name in args.rows or ROWS:
            below = pathlib.Path(directory) / name
            below.mkdir()
            faults += ROWS[name](args.bin, below, limits)
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
