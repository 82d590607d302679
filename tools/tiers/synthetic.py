"""Decode over caches of random keys that lie on disk (folio-tier-bench): every token reads other chunks, and before each
the system forgets what it has read, so that nothing is in memory but what the engine keeps there."""
import json
import os
import subprocess

import disk
from larger import report
from stored import MIB

SHAPE = "synthetic:tinyllama-1.1b"
TOKEN_BYTES = 22 * 4 * 64 * 2 * 2  # layers, KV heads, their size, keys and values, bf16
DEPTH = 131_072
MOST_TIME, MOST_BYTES = 1.2, 1.02
READS = (16 << 10, 64 << 10)  # bytes of a slice, and of a chunk of one head, whose slices lie side by side
AT_RANDOM = ("--raw_random", f"--raw_bytes={','.join(map(str, READS))}", f"--raw_threads={disk.READERS}")


def bench(bin_dir, depth, *flags, model=SHAPE, tokens=8):
    """What folio-tier-bench reports of its tokens."""
    done = subprocess.run([bin_dir / "folio-tier-bench", f"--model={model}", f"--depth={depth}", f"--decode_tokens={tokens}",
                           *flags], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def on_disk(bin_dir, directory, depth, memory_bytes, *flags, **kwargs):
    return bench(bin_dir, depth, f"--kv_dir={directory / 'kv'}", f"--kv_bytes={memory_bytes}", "--uncached", *flags, **kwargs)


def compared(row, found, memory_seconds, what):
    """The row of a cache on disk beside plain reads of its files at random, which took turns with the tokens, and beside the
    seconds that a token takes with everything in memory."""
    seconds, missed = (found[key] / found["tokens"] for key in ("seconds", "missed_bytes"))
    moved, hits = found["disk_bytes"] / found["missed_bytes"], found["hits"] / (found["hits"] + found["misses"])
    faults, shares = [], []
    for size, raw in zip(READS, found["raw_seconds"]):
        share = seconds / (memory_seconds + raw / found["tokens"])
        shares.append(f"{share:.2f} at {found['missed_bytes'] / raw / 1e9:.2f} GB/s, {size >> 10} KiB a read")
        if share > MOST_TIME:
            faults.append(f"{share:.2f} of the bound with reads of {size >> 10} KiB, the goal is {MOST_TIME}")
    if moved > MOST_BYTES:
        faults.append(f"{moved:.3f} of the missed bytes were moved, the goal is {MOST_BYTES}")
    figures = (f"{what}, {found['stored_bytes'] / MIB:.0f} MiB stored, hits {hits:.2f}: {seconds * 1000:.0f} ms a token, "
               f"{memory_seconds * 1000:.0f} ms in memory, {missed / MIB:.0f} MiB missed; of the time in memory and that of plain reads of as "
               f"much at random {', '.join(shares)} (goal {MOST_TIME}); bytes moved {moved:.3f} of those missed (goal {MOST_BYTES})")
    return report(row, figures, faults)


def measure_cold(bin_dir, directory, _limits):
    memory = bench(bin_dir, DEPTH)
    return compared("cold", on_disk(bin_dir, directory, DEPTH, 256 * MIB, *AT_RANDOM), memory["seconds"] / memory["tokens"],
                    f"TinyLlama shape, {DEPTH} tokens")


def measure_beyond(bin_dir, directory, _limits):
    """Larger than this machine's memory: what a token takes in memory grows by the chunk summaries, which are read whole; it is
    measured at two depths and carried on from there."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    depth = int(1.05 * memory_bytes / TOKEN_BYTES) // 512 * 512
    near, far = (bench(bin_dir, n) for n in (DEPTH // 2, 2 * DEPTH))
    per_token = [run["seconds"] / run["tokens"] for run in (near, far)]
    in_memory = per_token[1] + (per_token[1] - per_token[0]) * (depth - 2 * DEPTH) / (1.5 * DEPTH)
    return compared("beyond", on_disk(bin_dir, directory, depth, 2048 * MIB, *AT_RANDOM, tokens=5), in_memory,
                    f"TinyLlama shape, {depth} tokens, {memory_bytes / MIB:.0f} MiB of memory in this machine")
