"""Programs that take turns, so that a machine whose speed drifts from minute to minute is the same for all of them, and what
is said of their samples: medians with spread, and the median of the ratios of samples that were taken one after the other."""
import json
import statistics
import subprocess

LEAST_ROUNDS = 3


class BenchFailed(Exception):
    pass


def folio_bench(program, flags):
    """({what was measured}, [rows]) of a run of folio-bench."""
    done = subprocess.run([str(program), *flags, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchFailed(f"{program} {' '.join(flags)}: exit status {done.returncode}: {done.stderr.strip()[-500:]}")
    try:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return lines[0]["run"], lines[1:]
    except (ValueError, LookupError, TypeError) as error:
        raise BenchFailed(f"{program}: its output is not that of folio-bench: {type(error).__name__}: {error}") from error


def ratios(samples, others):
    return [one / other for one, other in zip(samples, others)]


def spread(samples, digits=2):
    """Median [least..most]."""
    return f"{statistics.median(samples):.{digits}f} [{min(samples):.{digits}f}..{max(samples):.{digits}f}]"


def rounds_argument(parser, default):
    parser.add_argument("--rounds", type=int, default=default,
                        help=f"times that each takes its turn, at least {LEAST_ROUNDS} ({default})")


def check_rounds(parser, rounds):
    if rounds < LEAST_ROUNDS:
        parser.error(f"--rounds is {rounds}; a median with a spread takes at least {LEAST_ROUNDS}")
