"""Stages that measure: the device's own figures, the speed of the engine on it, its kernels one by one."""
import csv
import os
import platform
import re
import shutil

PROGRAMS = ["folio", "folio-server", "folio-device-bench", "folio-loadtest", "cuda_tests"]
SMI_FIELDS = ["name", "driver_version", "memory.total", "memory.used", "clocks.sm", "clocks.max.sm", "clocks.mem",
              "clocks.max.mem", "temperature.gpu", "power.draw", "power.limit", "clocks_event_reasons.active"]
FIRST = ["ceilings", "decode/full/1x4096"]
SPEED = ["ceilings", "decode", "prefill", "verbs"]
# The cache of 131,072 tokens of that shape has 16 GiB, of 262,144 twice as much.
TIERS = ["tiers/decode", "tiers/prefill"]
TIER_POOL, TIER_HOST = 2 << 30, 40 << 30
ALL_ON_DEVICE = " (all on the device)"
# Each step launched kernel by kernel, and without overlap.
SWITCHES = {" without graphs": {"FOLIO_CUDA_GRAPHS": "0"}, " without PDL": {"FOLIO_CUDA_PDL": "0"}}
# What is profiled: a measurement, kernels of it, and how many launches.
PROFILES = [
    ("decode/full/1x4096", "GemvKernel|TensorRowsKernel|MergeKernel|RmsNormKernel", 12),
    ("decode/full/32x4096", "TensorRowsKernel|gemm|nvjet|cutlass", 8),
    ("decode/long_heads/1x131072", "ScoreChunksKernel|ChooseChunksKernel|TensorRowsKernel", 9),
    ("prefill/full/4096", "TilesKernel|StoreKernel|gemm|nvjet|cutlass", 10),
    ("prefill/long_heads/32768", "ChunkKernel|SummarizeKernel|MergePicksKernel", 6),
]
METRICS = {
    "gpu__time_duration.sum": "duration",
    "dram__bytes.sum": "dram_bytes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "active_warps_percent",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_pipe_percent",
    "launch__registers_per_thread": "registers",
    "launch__occupancy_limit_registers": "blocks_by_registers",
}


def bench_command(stage, only, *more):
    small = ["--model=synthetic:tiny", "--scale=512", "--step_tokens=64", "--repetitions=2", "--kv_bytes=67108864"]
    return [stage.bin / "folio-device-bench", f"--device={stage.device}", f"--only={','.join(only)}",
            *(small if stage.rehearse else []), *more]


def smi(stage):
    if not shutil.which("nvidia-smi"):
        return stage.record("nvidia-smi", "skipped" if stage.rehearse else "no gpu", error="there is no nvidia-smi here")
    outcome = stage.run("nvidia-smi", ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"], seconds=30)
    values = [value.strip() for value in outcome.text().splitlines()[0].split(",")] if outcome.text() else []
    return stage.record("nvidia-smi", outcome.status(), **dict(zip(["gpu", *SMI_FIELDS[1:]], values)), **outcome.values())


def smoke(stage):
    """what machine this is, whether every program starts, one parity test, ceilings, decode of one stream"""
    smi(stage)
    stage.record("machine", "ok", system=platform.platform(), libc=" ".join(platform.libc_ver()), cpus=os.cpu_count(),
                 python=platform.python_version(),
                 tools=[tool for tool in ("nvcc", "ncu", "compute-sanitizer", "cuda-gdb") if shutil.which(tool)])
    for program in PROGRAMS:
        outcome = stage.run(f"start-{program}", [stage.bin / program, "--help"], seconds=30)
        loads = outcome.code is not None and 0 <= outcome.code < 126  # 126, 127: the loader's
        stage.record(f"start/{program}", "ok" if loads else "failed", **({} if loads else outcome.values()))
    stage.check("parity", [stage.bin / "cuda_tests", "--gtest_filter=*AttentionParity*bf16_128_mha*"], seconds=60,
                env={"FOLIO_TEST_DATA": str(stage.bundle / "tests")})
    measure(stage, FIRST, set())


def measure(stage, only, done, suffix="", env=None):
    """Measurements of folio-device-bench, a line each as they come. A device that fails takes its process along: the rest runs
    in a new one, and the failed one once more with every launch waited for, which names verb and kernel."""
    listed = stage.run("list", [stage.bin / "folio-device-bench", "--list", f"--only={','.join(only)}"], seconds=30)
    if listed.code != 0:
        return stage.record("folio-device-bench", listed.status(), **listed.values())
    waiting = [name for name in listed.text().split() if name + suffix not in done]
    round_number = 0
    while waiting:
        seen = []
        round_number += 1
        outcome = stage.run(f"bench{suffix}-{waiting[0]}-{round_number}", bench_command(stage, waiting), quiet=90, env=env,
                            on_line=stage.forward(suffix, seen))
        measured = [name for name in waiting if name + suffix in seen]
        left = [name for name in waiting if name not in measured]
        if outcome.code in (0, 1) and measured:
            break
        if not seen:  # it did not even start
            return stage.record(f"folio-device-bench{suffix}", outcome.status(), **outcome.values())
        culprit = measured[-1] if outcome.code == 3 else left[0] if left else None
        if outcome.code != 3 and culprit:
            stage.record(culprit + suffix, outcome.status(), **outcome.values())
            left.remove(culprit)
        if culprit and outcome.code is not None and not suffix:
            stage.run(f"sync-{culprit}", bench_command(stage, [culprit]), env={"FOLIO_CUDA_SYNC": "1"},
                      on_line=stage.forward(" (FOLIO_CUDA_SYNC=1)"))
        waiting = left
    return None


def speed(stage):
    """decode by streams, depths and strategies, prefill, verbs by the device's clock, and what graphs and overlap bring"""
    done = stage.results.done("speed")
    measure(stage, SPEED, done)
    for suffix, env in SWITCHES.items():
        measure(stage, FIRST[1:], done, suffix, env)


def tiers(stage):
    """a Llama-3-8B shape with an eighth of its cache on the device and all of it in the host's memory, beside all on the device"""
    done = stage.results.done("tiers")
    shape = ["--model=synthetic:llama-3-8b"]
    pool = [f"--kv_bytes={TIER_POOL >> 10 if stage.rehearse else TIER_POOL}",
            f"--kv_host_bytes={TIER_HOST >> 10 if stage.rehearse else TIER_HOST}"]
    for suffix, more in ((ALL_ON_DEVICE, []), ("", [] if stage.device == "cpu" else pool)):
        for name in TIERS:
            if name + suffix in done:
                continue
            outcome = stage.run(f"{name}{suffix}", bench_command(stage, [name], *([] if stage.rehearse else shape), *more),
                                seconds=100, on_line=stage.forward(suffix))
            if outcome.code != 0:
                stage.record(name + suffix, outcome.status(), **outcome.values())


def kernel_rows(text):
    """Rows of `ncu --csv --page raw`: a header, a row of units, a row per launch."""
    rows = [row for row in csv.reader(text.splitlines()) if len(row) > 5]
    heads = [n for n, row in enumerate(rows) if "Kernel Name" in row]
    if not heads:
        return []
    header, units = rows[heads[0]], rows[heads[0] + 1]
    return [(dict(zip(header, row)), dict(zip(header, units))) for row in rows[heads[0] + 2:] if len(row) == len(header)]


def profile(stage):
    """hardware counters of the main kernels, where Nsight Compute (ncu) is"""
    if stage.run("probe", bench_command(stage, ["ceilings/copy"]), seconds=60).status() == "no gpu":
        return stage.record("ncu", "no gpu", error="there is no CUDA device")
    if not shutil.which("ncu"):
        return stage.record("ncu", "skipped", error="there is no ncu (Nsight Compute) here")
    for name, kernels, launches in PROFILES:
        if name in stage.results.done("profile"):
            continue
        outcome = stage.run(
            name, ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--kernel-name", f"regex:{kernels}",
                   "--launch-count", launches, "--metrics", ",".join(METRICS),
                   *bench_command(stage, [name], "--repetitions=1", f"--kv_bytes={80 << 30}")],
            seconds=80, env={"FOLIO_CUDA_GRAPHS": "0"})
        rows = kernel_rows(outcome.text())
        for values, units in rows:
            stage.record(f"{name}: {values['Kernel Name'][:100]}", "ok", grid=values.get("Grid Size"),
                         **{short: number(values[metric]) for metric, short in METRICS.items() if values.get(metric)},
                         duration_unit=units.get("gpu__time_duration.sum"), bytes_unit=units.get("dram__bytes.sum"))
        stage.record(name, outcome.status() if rows or outcome.code != 0 else "failed", launches=len(rows), **outcome.values())
    return None


def number(text):
    return float(text.replace(",", "")) if re.fullmatch(r"-?[\d.,]+(e[+-]?\d+)?", text) else text
