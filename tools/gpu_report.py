"""The tables of docs/gpu-results.md, as Markdown, from the lines that run.sh of the GPU bundle has written.

    python3 tools/gpu_report.py results.jsonl..."""
import argparse
import collections
import json
import sys


ALL_ON_DEVICE = " (all on the device)"


def read(paths):
    """{(stage, name): line}; a later line replaces an earlier one, but nothing replaces a success."""
    found = {}
    for path in paths:
        for text in open(path):
            try:
                line = json.loads(text)
            except json.JSONDecodeError:  # the last one of a run that was killed
                continue
            key = line["stage"], line["name"]
            if line["status"] == "ok" or found.get(key, {}).get("status") != "ok":
                found[key] = line
    return found


class Figures:
    def __init__(self, lines):
        self.lines = lines

    def get(self, name, key):
        for (_, other), line in self.lines.items():
            if other == name and line["status"] == "ok" and key in line:
                return line[key]
        return None

    def ratio(self, above, below):
        a, b = self.get(*above), self.get(*below)
        return None if a is None or not b else a / b


def tier_goal(f, name, goal):
    """A step that brings what is not on the device, beside the step with all of it there and a plain copy of those bytes."""
    at = f"tiers/decode/{name}/131072"
    seconds, alone = f.get(at, "step_seconds"), f.get(at + ALL_ON_DEVICE, "step_seconds")
    brought, rate = f.get(at, "host_bytes"), f.get(at, "host_copy_bytes_per_s")
    ratio = seconds / (alone + brought / rate) if seconds and alone and rate and brought is not None else None
    return f"decode at 128k, {name}, an eighth on the device: times all there + copy of what is missing, at most", goal, ratio


# What is asked of the backend: at least a figure, but for seconds.
def goals(f):
    def tokens(name):
        return name, "tokens_per_s"
    one, far = tokens("decode/full/1x4096"), tokens("decode/full/1x131072")
    heads, lambda_shape = tokens("decode/long_heads/1x131072"), tokens("decode/lm_infinite/1x131072")
    ready = f.get("server-7b/start", "seconds")
    return [
        ("decode, 1 stream at 4k, full: of a copy's rate", 0.85, f.get("decode/full/1x4096", "of_copy")),
        ("decode, 32 streams at 4k, full: of a copy's rate", 0.75, f.get("decode/full/32x4096", "of_copy")),
        ("decode, 1 stream at 128k, LongHeads: of full at 4k", 0.9, f.ratio(heads, one)),
        ("decode, 1 stream at 128k, LongHeads: times full at 128k", 3, f.ratio(heads, far)),
        ("decode, 1 stream at 128k, LM-Infinite: of full at 4k", 0.95, f.ratio(lambda_shape, one)),
        ("KV of full attention per KV of LM-Infinite at 128k", 25,
         f.ratio(("decode/full/1x131072", "stored_bytes"), ("decode/lm_infinite/1x131072", "stored_bytes"))),
        ("decode, 16 streams at 4k to 32k: three batches' time per mixed batch", 0.85,
         f.ratio(("decode/mixed/16", "step_seconds_by_strategy"), ("decode/mixed/16", "step_seconds"))),
        *((f"prefill of 32k, {name}: of a product's rate", goal, f.get(f"prefill/{name}/32768", "of_product"))
          for name, goal in (("full", 0.55), ("lm_infinite", 0.55), ("long_heads", 0.3))),
        ("decode at 4k: times transformers", 3, f.ratio(one, tokens("transformers/decode/1x4096"))),
        ("prefill of 32k and 128 tokens, LongHeads: times transformers", 5,
         f.ratio(("transformers/prefill/32768", "seconds_with_128_tokens"),
                 ("prefill/long_heads/32768", "seconds_with_128_tokens"))),
        *(tier_goal(f, name, goal) for name, goal in (("long_heads", 1.15), ("long_heads_group", 1.15), ("full", 1 / 0.85))),
        *((f"prefill at 256k, {name}, an eighth on the device: readings of the text per step, at most", 1,
           f.get(f"tiers/prefill/{name}/262144", "reads_of_text")) for name in ("long_heads", "full")),
        ("process start to serving, synthetic 7B: seconds, at most", 20, ready),
    ]


def table(heads, rows):
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|",
                      *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}g}" if isinstance(value, float) and value < 1000 else f"{value:.0f}" if isinstance(value, (int, float)) else value


def goals_table(figures):
    return table(["line", "goal", "measured", ""],
                 [(name, number(goal), number(value), "-" if value is None else
                   "met" if (value <= goal if name.endswith("at most") else value >= goal) else "missed")
                  for name, goal, value in goals(figures)])


def checks_table(lines):
    rows = []
    for stage in ("tests", "shape", "sanitizer"):
        of_stage = [line for (where, name), line in lines.items() if where == stage and name != stage]
        counts = collections.Counter(line["status"] for line in of_stage)
        if of_stage:
            rows.append((stage, ", ".join(f"{count} {status}" for status, count in counts.items())))
    return table(["checks", "results"], rows)


def speed_table(lines):
    rows = [(line["name"], number(line.get("tokens_per_s")), number(line.get("step_seconds", line.get("seconds"))),
             number(line.get("of_copy")), number(line.get("of_product")))
            for (stage, name), line in lines.items()
            if name.startswith(("decode/", "prefill/", "transformers/")) and line["status"] == "ok"
            and (stage != "smoke" or ("speed", name) not in lines)]
    return table(["measurement", "tokens/s", "seconds (of a step, or of all)", "of a copy's rate", "of a product's rate"], rows)


def verb_tables(lines):
    for (_, name), line in lines.items():
        if name.startswith("verbs/") and line["status"] == "ok":
            rows = [(row["verb"], row["calls"], f"{1e6 * row['seconds']:.0f}", f"{100 * row['seconds'] / line['step_seconds']:.0f} %",
                     number(row["bytes_per_s"] / 1e9 if "bytes_per_s" in row else None))
                    for row in sorted(line["verbs"], key=lambda row: -row["seconds"])]
            yield f"`{name}`, {1e3 * line['step_seconds']:.2f} ms\n\n" + table(["verb", "calls", "us", "share", "GB/s"], rows)


def profile_table(lines):
    keys = ["duration", "dram_percent", "sm_percent", "tensor_pipe_percent", "active_warps_percent", "registers"]
    rows = [(line["name"], *(number(line.get(key)) for key in keys))
            for (stage, _), line in lines.items() if stage == "profile" and "duration" in line]
    return table(["kernel", *keys], rows)


def failures_table(lines):
    return table(["what", "status", "why"],
                 [(line["name"], line["status"], str(line.get("error", "")).replace("\n", " ").replace("|", "/")[:200])
                  for (stage, name), line in lines.items() if line["status"] not in ("ok",) and name != stage])


def report(lines):
    figures = Figures(lines)
    smi = lines.get(("smoke", "nvidia-smi"), {})
    dates = sorted(line["at"] for line in lines.values())
    commits = sorted({line["commit"] for line in lines.values()})
    yield (f"{smi.get('gpu', 'no GPU')}, driver {smi.get('driver_version', '-')}; commit {', '.join(commits)}; "
           f"{dates[0][:10] if dates else '-'}. Copy {number((figures.get('ceilings/copy', 'bytes_per_s') or 0) / 1e9)} GB/s, "
           f"product {number((figures.get('ceilings/product', 'flops_per_s') or 0) / 1e12)} TFLOP/s.")
    for title, text in (("Goals", goals_table(figures)), ("Checks", checks_table(lines)), ("Speed", speed_table(lines)),
                        ("Where a step's time goes", "\n\n".join(verb_tables(lines))), ("Kernels", profile_table(lines)),
                        ("What failed or was left out", failures_table(lines))):
        if text.count("\n") > 1:
            yield f"## {title}\n\n{text}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", help="results.jsonl of run.sh; of several runs the later ones count")
    args = parser.parse_args()
    print("\n\n".join(report(read(args.results))))


if __name__ == "__main__":
    sys.exit(main())
