"""What the schedule does for those who share a server, measured over gRPC with the bundled model: short questions beside
another client's flood of long prompts, predictions against what then happened, and goodput under overload."""
import argparse
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

from demo import MODEL  # noqa: E402
from estimates import estimates  # noqa: E402
from flood import flood  # noqa: E402
from overload import overload  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("flood", "estimates", "overload"))
    parser.add_argument("--bin", default=ROOT / "build/release/bin")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--flood", type=int, default=500)
    parser.add_argument("--flood-tokens", type=int, default=32000)
    parser.add_argument("--settle", type=float, default=15, help="seconds of flood before the questions")
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=30, help="of each window that is measured")
    parser.add_argument("--rounds", type=int, default=5, help="of the overload: a closed loop and both kinds of it")
    parser.add_argument("--deadline", type=float, default=5)
    parser.add_argument("--obeying", type=int, default=400, help="clients that come again when they are told to")
    parser.add_argument("--server-processors", help="as taskset has them; the clients should have others")
    parser.add_argument("--client-processors", type=int, nargs="*")
    parser.add_argument("--flags", nargs="*", default=[], help="of the server")
    args = parser.parse_args()
    if args.client_processors:
        os.sched_setaffinity(0, args.client_processors)
    {"flood": flood, "estimates": estimates, "overload": overload}[args.what](args)


if __name__ == "__main__":
    main()
