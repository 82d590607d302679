"""What weights and caches of fewer bits change of the bundled model's answers under LongHeads, as the Markdown tables of
docs/results.md: percent right of pass keys by length and of needles at ten depths, with Wilson intervals, and how much of the
evidence is that of fp32.

Answers are kept as CSV files in --out; a second run asks only what is not there yet. Ten minutes to half an hour on two cores.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "models" / "texts"
STRATEGY, FILLER = "long_heads", "manual"
# --weight-dtype and --kv-dtype; the first is what others are compared with.
DTYPES = [("fp32", "fp32"), ("bf16", "bf16"), ("fp32", "int8"), ("fp32", "int4"), ("int8", "int8"), ("int4", "int8"), ("int4", "int4")]
EVIDENCE_TEXTS = ["ezekiel", "licenses", "manual"]
EVIDENCE_BYTES, NUM_SPANS, NUM_QUESTIONS = 40_000, 8, 20


def evaluate(server, task, path, *flags):
    done = server.folio("--json", "eval", task, "--strategies", STRATEGY, "--filler", TEXTS / f"{FILLER}.txt", "--seed", 1,
                        "--concurrency", 2, "--output", path, "--resume", *flags)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])["summary"]["cells"]


def evidence(server, text):
    """[{first tokens of the parts that the heads chose most for one token of the answer}], a set per question."""
    document = text[:EVIDENCE_BYTES]
    # Questions are lines that the document does not hold.
    lines = [line for line in text[EVIDENCE_BYTES:].splitlines() if len(line) >= 40]
    step = len(lines) // NUM_QUESTIONS
    chosen = []
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "document.txt"
        path.write_text(document, encoding="utf-8")
        for line in lines[::step][:NUM_QUESTIONS]:
            done = server.folio("--json", "ask", "--document", path, "--question", line, "--strategy", STRATEGY, "--evidence",
                                NUM_SPANS, "--max-new-tokens", 1, "--ignore-eos")
            if done.returncode:
                raise SystemExit(done.stderr)
            parts = [json.loads(part) for part in done.stdout.splitlines()]
            chosen.append({span["token_begin"] for part in parts if "evidence" in part for span in part["evidence"]["spans"]})
    return chosen


def overlap(ours, reference):
    return 100 * statistics.mean(len(a & b) / len(b) for a, b in zip(ours, reference, strict=True))


def cell_text(cell):
    return "{:.0f} ({:.0f}-{:.0f})".format(*(100 * cell[key] for key in ("accuracy", "accuracy_low", "accuracy_high")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--model", default=str(ROOT / "models" / "folio-tiny"))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "narrow_numbers")
    parser.add_argument("--trials", type=int, default=20, help="per length of pass keys")
    parser.add_argument("--needle-trials", type=int, default=4, help="per length and depth")
    parser.add_argument("--lengths", default="1,4,16,64", help="in trained lengths of the model")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = {name: (TEXTS / f"{name}.txt").read_text(encoding="utf-8") for name in EVIDENCE_TEXTS}
    columns = [f"{what} {n}x" for what in ("pass key", "needle") for n in args.lengths.split(",")]
    columns += [f"evidence, {name}" for name in texts]
    print("| weights | cache | " + " | ".join(columns) + " |\n" + "|---" * (2 + len(columns)) + "|")
    reference = None
    for weights, cache in DTYPES:
        with RunningServer(args.bin, args.model, "--kv-bytes=4000000000", f"--weight-dtype={weights}",
                           f"--kv-dtype={cache}") as server:
            name = f"{weights}-{cache}"
            pass_keys = evaluate(server, "passkey", args.out / f"passkey-{name}.csv", "--trials", args.trials, "--lengths",
                                 args.lengths)
            needles = evaluate(server, "needle", args.out / f"needle-{name}.csv", "--trials", args.needle_trials, "--lengths",
                               args.lengths)
            chosen = {text_name: evidence(server, text) for text_name, text in texts.items()}
        reference = reference or chosen
        same = [f"{overlap(chosen[text_name], reference[text_name]):.0f}" for text_name in texts]
        print("| " + " | ".join([weights, cache, *map(cell_text, pass_keys), *map(cell_text, needles), *same]) + " |", flush=True)


if __name__ == "__main__":
    main()
