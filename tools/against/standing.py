"""Where Folio stands beside its peers: the tables of docs/performance.md and README.md, made of the runs in docs/benchmarks.
tests/docs_test.py holds both documents to what this prints."""
import functools
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
RUNS = HERE.parent.parent / "docs/benchmarks"
sys.path[:0] = [str(HERE)]

from rows import MATRIX_UNIT, ROWS, SPEEDS  # noqa: E402

# The runs on each machine, the newest first: a row is that of the newest run which has it.
MACHINES = {
    "Zen 4": ["2026-11-28-779ea9e", "2026-11-28-1859920", "2026-11-28-26d0242", "2026-11-28-433ed25", "2026-11-28-64ec7e8",
              "2026-11-28-472eafd", "2026-11-28-4e62d35", "2026-11-27-e2e275c"],
    "Zen 5": ["2026-11-29-ec3a33c"],
    "Xeon": ["2026-11-24-ec5a9dc", "2026-11-24-32555b8"],
    "AMX": ["2026-11-24-e4bc742"],
    "Zen 3": ["2026-11-24-ef02b13"],
}
OF_README = "Zen 5"


@functools.cache
def results(run):
    """{name of a row: its entry} of one file."""
    record = json.loads((RUNS / f"{run}-against.json").read_text())
    return {entry["case"]["row"]: entry for entry in record["results"]}


def run_of(machine, row):
    return next((run for run in MACHINES[machine] if row.name in results(run)), None)


def entry_of(machine, row):
    run = run_of(machine, row)
    return results(run)[row.name] if run else None


def number(value):
    return f"{value:.2f}" if value < 5 else f"{value:.1f}" if value < 20 else f"{value:.0f}"


def marked(value, goal):
    """Bold where the goal is reached."""
    return f"**{number(value)}**" if goal is not None and value >= goal else number(value)


def cell(machine, row):
    entry = entry_of(machine, row)
    if entry is None:
        return ""
    metrics = entry["metrics"]
    row = row.on_machine_of(metrics)
    parts = [marked(metrics["peer_ratio"], row.ratio)]
    if row.share is not None:
        parts.append(marked(metrics[row.ceiling.share], row.share))
    return "; ".join(parts)


def goal(row):
    """Those of a machine with a matrix unit are in brackets where they are others."""
    def text(one):
        return "; ".join(f"{value:g}" for value in (one.ratio, one.share) if value is not None) or "–"
    with_unit = row.on_machine_of({MATRIX_UNIT.metric: 1.0})
    return text(row) if with_unit is row else f"{text(row)} [{text(with_unit)}]"


def markdown(lines):
    head, *body = ["|" + "|".join(f" {text} " if text else " " for text in line) + "|" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *body])


def all_machines():
    return markdown([["row", "what", "goal", *MACHINES]] +
                    [[f"`{row.name}`", row.title(), goal(row), *(cell(machine, row) for machine in MACHINES)] for row in ROWS])


def one_machine(machine):
    """Rows with a goal, in tokens per second."""
    lines = [["", "Folio", "the peer", "ratio"]]
    for row in ROWS:
        if row.ratio is None and row.share is None:
            continue
        entry = entry_of(machine, row)
        peer = statistics.median(entry["samples"][entry["best_peer"]])
        lines.append([row.title(), number(entry["metrics"][SPEEDS[row.what]]), number(peer), number(entry["metrics"]["peer_ratio"])])
    return markdown(lines)


def runs_of(machine):
    """Links to the runs, with the rows that are theirs."""
    rows = {}
    for row in ROWS:
        if run := run_of(machine, row):
            rows.setdefault(run, []).append(row.name)
    return ", ".join(f"[{run[-7:]}](benchmarks/{run}-against.json)" + (f" ({', '.join(names)})" if len(rows) > 1 else "")
                     for run, names in rows.items())


if __name__ == "__main__":
    print(all_machines())
    for each in MACHINES:
        print(f"\n{each}: {runs_of(each)}")
    print("\n" + one_machine(OF_README))
