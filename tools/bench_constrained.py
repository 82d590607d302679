"""What a grammar on every row of a batch costs: seconds per decode step with and without, in turns, of a model of the TinyLlama shape
with random weights. --tokenizer names a tokenizer.model of 32,000 pieces, such as the one in PyPI's mistral-common 1.5.4
(mistral_common/data/tokenizer.model.v1). Run it from ./dev build."""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = {"layers": 22, "hidden_size": 2048, "intermediate_size": 5632, "heads": 32, "kv_heads": 4, "vocab_size": 32000,
         "trained_length": 2048}
TEXT = {"type": "string", "maxLength": 40}
# Answers that do not end within the tokens of a measurement.
CONSTRAINTS = {
    "schema": {"type": "array", "minItems": 500, "items": {"type": "object", "required": ["name", "amount", "kind"], "properties": {
        "name": TEXT, "amount": {"type": "number"}, "kind": {"enum": ["rent", "deposit", "fee"]}, "note": TEXT}}},
    "expression": r"([A-Z][a-z]+, [0-9]{1,4}; ){200}",
}


def step_seconds(server, rows, num_tokens, temperature, *constraint):
    """Of the answer that took longest to decode."""
    done = server.folio("--json", "ask", "--question", "And it came to pass", "--answers", rows, "--temperature", temperature,
                        "--max-new-tokens", num_tokens, *(constraint or ("--ignore-eos",)))
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    events = [json.loads(line)["event"]["completed"] for line in done.stdout.splitlines() if "completed" in line]
    if any(int(event["usage"]["completion_tokens"]) != num_tokens for event in events) or len(events) != rows:
        raise RuntimeError("an answer is too short")
    return max(event["timings"]["decode_seconds"] for event in events) / (num_tokens - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--weight-dtype", default="bf16")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = pathlib.Path(directory) / "model"
        subprocess.run([args.bin / "folio-make-model", f"--output={model}", "--dtype=bf16",
                        *(f"--{name}={value}" for name, value in SHAPE.items())], check=True, capture_output=True)
        for path in model.glob("tokenizer*"):
            path.unlink()
        shutil.copy(args.tokenizer, model / "tokenizer.model")
        schema = pathlib.Path(directory) / "schema.json"
        schema.write_text(json.dumps(CONSTRAINTS["schema"]))
        flags = {"none": (), "schema": ("--json-schema", schema), "expression": ("--regex", CONSTRAINTS["expression"])}
        seconds = {name: [] for name in flags}
        with RunningServer(args.bin, model, "--kv-bytes=2GiB", f"--weight-dtype={args.weight_dtype}") as server:
            for _ in range(args.rounds):
                for name, flag in flags.items():
                    seconds[name].append(step_seconds(server, args.rows, args.new_tokens, args.temperature, *flag))
    plain = statistics.median(seconds["none"])
    for name, measured in seconds.items():
        middle = statistics.median(measured)
        print(f"{args.weight_dtype}, {args.rows} rows, {name}: {1000 * middle:.1f} ms per step "
              f"({1000 * min(measured):.1f} to {1000 * max(measured):.1f}), {100 * (middle / plain - 1):+.1f} % of none")


if __name__ == "__main__":
    main()
