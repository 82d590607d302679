"""How fast a document is saved, and what else the server does meanwhile."""
import os
import time

import disk
import stored
from larger import report
from stored import MIB

CHARS = 400_000  # about 131,000 tokens, half a GiB
LEAST_RATE, LEAST_DECODE, LEAST_PREFILL = 0.8, 0.9, 0.97
# All of it has room in memory: what is measured is saving, not reading.
FLAGS = [f"--kv-bytes={1536 * MIB}", "--kv-disk-bytes=4GiB"]


def synced_write_rate(directory):
    """Bytes per second that are written and durable, in files of a segment's size."""
    piece, path = os.urandom(4 * MIB), directory / "written"

    def write():
        for number in range(64):
            file = os.open(f"{path}-{number}", os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(file, piece, 0)
            os.fdatasync(file)
            os.close(file)
    seconds = disk.timed(write)
    for number in range(64):
        os.unlink(f"{path}-{number}")
    return 64 * len(piece) / seconds


def answer_rate(server):
    return float(stored.ask(server, "other", max_new_tokens=150)[1]["timings"]["tokens_per_second"])


def measure(bin_dir, directory, _limits):
    text, other = directory / "text.txt", directory / "other.txt"
    text.write_text(stored.words(1, CHARS))
    other.write_text(stored.words(2, 30_000))
    seconds, rates = {}, {}
    for name, quota in (("not saved", "1"), ("saved", "4GiB")):
        store = stored.Store(bin_dir, directory / name.replace(" ", "-"), *FLAGS, f"--store-bytes={quota}")
        store.directory.parent.mkdir()
        with store.server() as server:
            stored.upload(server, other, "other")
            rates["alone"] = max(answer_rate(server) for _ in range(3))
            started = time.monotonic()
            stored.upload(server, text, "text")
            seconds[name] = time.monotonic() - started
            if name == "saved":
                started = time.monotonic()
                saved = stored.save(server, "text")
                seconds["save"] = time.monotonic() - started
                stored.upload(server, text, "again")
                rates["beside"] = answer_rate(server)
                rates["alone"] = max(rates["alone"], *(answer_rate(server) for _ in range(3)))
    written = synced_write_rate(directory)
    rate = int(saved["stored_bytes"]) / seconds["save"] / written
    decode, prefill = rates["beside"] / rates["alone"], seconds["not saved"] / seconds["saved"]
    faults = [f"{what} at {ratio:.2f}, the goal is {goal}" for what, ratio, goal in
              (("writing", rate, LEAST_RATE), ("decode beside it", decode, LEAST_DECODE), ("prefill", prefill, LEAST_PREFILL))
              if ratio < goal]
    figures = (f"{int(saved['stored_bytes']) / MIB:.0f} MiB in {seconds['save']:.2f} s: {rate:.2f} (goal {LEAST_RATE}) of the rate at which "
               f"files of 4 MiB are written and synced, {written / 1e9:.2f} GB/s; an answer beside it at {decode:.2f} (goal {LEAST_DECODE}), "
               f"prefill with saving at {prefill:.2f} (goal {LEAST_PREFILL})")
    return report("save", figures, faults)
