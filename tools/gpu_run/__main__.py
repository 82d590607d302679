"""Checks and measures the CUDA backend on a machine with an NVIDIA GPU, in stages.

    run.sh                     all stages in order, as far as the minutes go
    run.sh smoke tests         these
    run.sh --list              what the stages are

Every measurement is one line of JSON in results/results.jsonl, written when it is made. What was done there before, for the
same commit, is not done again (--again). In the end everything goes into folio-gpu-results.tar.gz: in $OUT, if that is set,
where the lines are too, else in results/. Exit code: 0 nothing failed, 1 something did, 77 there is no GPU."""
import argparse
import os
import pathlib
import signal
import sys
import time
import traceback

import cublas
import stages
from results import Results
from stage import OutOfTime, Stage, end_all

ARCHIVE_SECONDS = 15


def parse(arguments):
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=" ".join(stages.ALL))
    parser.add_argument("--bundle", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="print the stages and their seconds, and end")
    parser.add_argument("--again", action="store_true", help="do again what was done before")
    parser.add_argument("--minutes", type=float, default=9.5, help="end by then, archive included (%(default)s)")
    parser.add_argument("--results", type=pathlib.Path, help="folder (default: results, in the bundle)")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny models: tries this program itself")
    args = parser.parse_args(arguments)
    for name in args.stages:
        if name not in stages.ALL:
            parser.error(f"there is no stage '{name}', but {' '.join(stages.ALL)}")
    return args


def run_stage(name, args, results, deadline):
    """One stage to its end, whatever happens in it; a line for the whole of it."""
    function, seconds = stages.ALL[name]
    start = time.monotonic()
    stage = Stage(name, args.bundle, results, min(deadline, start + seconds), args.rehearse)
    try:
        if start >= deadline:
            raise OutOfTime
        function(stage)
    except OutOfTime:
        stage.record(f"{name}/rest", "timeout", error="the time of this stage, or of the run, was up")
    except Exception as error:  # the other stages shall run
        stage.record(f"{name}/run.sh", "failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    results.end_stage(name, time.monotonic() - start)


def main():
    args = parse(sys.argv[1:])
    args.bundle = args.bundle or pathlib.Path(__file__).resolve().parent.parent
    if args.list:
        for name, (function, seconds) in stages.ALL.items():
            print(f"{name:<13} {seconds:>4} s  {function.__doc__.splitlines()[0]}")
        return 0
    deadline = time.monotonic() + 60 * args.minutes - ARCHIVE_SECONDS
    signal.signal(signal.SIGTERM, end_all)
    blas = cublas.provide(args.bundle)
    commit = args.bundle / "commit"
    results = Results(args.results or args.bundle / "results", os.environ.get("OUT"),
                      commit.read_text().strip() if commit.exists() else "unknown", args.again)
    results.record("run.sh", "start", "ok", arguments=sys.argv[1:], cublas=blas)
    try:
        for name in args.stages or stages.ALL:
            run_stage(name, args, results, deadline)
    finally:
        archive = results.archive()
    print(results.summary())
    print(f"archive: {archive}")
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main())
