"""Speed of the engine on a synthetic TinyLlama-1.1B (bf16), beside this machine's memory bandwidth and arithmetic: a
table, and the same as JSON (docs/benchmarks/README.md) for ./dev bench-compare."""
import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = [("decode_tokens_per_s", "decode t/s", 11, 2), ("decode_gb_per_s", "GB/s", 8, 1), ("read_gb_per_s", "read", 8, 1),
           ("bandwidth_share", "of read", 9, 3), ("prefill_tokens_per_s", "prefill", 10, 1),
           ("prefill_gflop_per_s", "GFLOP/s", 9, 1), ("peak_share", "of fp32", 9, 3)]


def output_of(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def cpu_name(cpuinfo):
    """As /proc/cpuinfo names the processor, with its numbers where it has some: virtual machines call Zen 4 and
    Zen 5 by one name."""
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", cpuinfo, re.M))
    numbers = f" (family {fields['cpu family']}, model {fields['model']})" if {"cpu family", "model"} <= set(fields) else ""
    return fields.get("model name", "unknown") + numbers


def machine():
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", pathlib.Path("/proc/meminfo").read_text(), re.M)
    return {"cpu": cpu_name(pathlib.Path("/proc/cpuinfo").read_text()), "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(int(memory.group(1)) / 2**20, 1)}


def build(bin_dir):
    cache = pathlib.Path(bin_dir).parent / "CMakeCache.txt"
    entries = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(), re.M)) if cache.exists() else {}
    compiler = entries.get("CMAKE_CXX_COMPILER", "")
    version = output_of(compiler, "--version").splitlines() if compiler else []
    return {"type": entries.get("CMAKE_BUILD_TYPE") or "RelWithDebInfo", "compiler": version[0] if version else "unknown"}


def measure(command):
    """Rows of folio-bench, printed as they come: ({what was measured}, [rows])."""
    bench = subprocess.Popen(command + ["--json"], stdout=subprocess.PIPE, text=True)
    run, results = {}, []
    for line in bench.stdout:
        row = json.loads(line)
        if "run" in row:
            run = row["run"]
            print(", ".join(f"{key} {value}" for key, value in run.items()))
            print(f"{'strategy':<12} {'depth':>8}" + "".join(f" {title:>{width}}" for _, title, width, _ in COLUMNS))
            continue
        case = {"strategy": row.pop("strategy"), "depth": row.pop("depth")}
        if not row.get("prefill_tokens_per_s"):  # decode alone was measured
            row = {name: value for name, value in row.items() if "prefill" not in name and "peak_" not in name}
        results.append({"case": case, "metrics": row})
        print(f"{case['strategy']:<12} {case['depth']:>8}"
              + "".join(f" {row[name]:>{width}.{digits}f}" if name in row else f" {'-':>{width}}"
                        for name, _, width, digits in COLUMNS), flush=True)
    if bench.wait() != 0:
        sys.exit(bench.returncode)
    return run, results


def tree():
    """The commit, and whether the tree differs from it. Taken before a long run: what is measured is the tree at its start."""
    return {"commit": output_of("git", "rev-parse", "--short", "HEAD") or "unknown",
            "changed": bool(output_of("git", "status", "--porcelain", "-uno"))}


def record(measured_tree, bin_dir, command, run, note, results):
    return {"schema": 1, **measured_tree, "date": datetime.date.today().isoformat(), "machine": machine(),
            "build": build(bin_dir), "command": command, "run": run, "note": note, "results": results}


def write(content, output=None, suffix=""):
    output = output or ROOT / "build" / "bench" / f"{content['date']}-{content['commit']}{suffix}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written: {output}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--preset", default="tinyllama-1.1b")
    parser.add_argument("--strategies", default="full,lm_infinite,long_heads")
    parser.add_argument("--depths", default="0,2048,32768")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--note", default="", help="what else the machine did, for the JSON")
    parser.add_argument("--output", type=pathlib.Path, help="JSON file; default build/bench/DATE-COMMIT.json")
    args = parser.parse_args()
    model = ROOT / "build" / "models" / args.preset
    if not (model / "config.json").exists():
        subprocess.run([f"{args.bin}/folio-make-model", f"--preset={args.preset}", f"--output={model}"], check=True)
    flags = [f"--threads={args.threads}", f"--strategies={args.strategies}", f"--depths={args.depths}"]
    measured_tree = tree()
    run, results = measure([f"{args.bin}/folio-bench", f"--model={model}", *flags])
    command = f"folio-bench --model={args.preset} {' '.join(flags)}"
    write(record(measured_tree, args.bin, command, run, args.note, results), args.output)


if __name__ == "__main__":
    main()
