"""How fast a document is saved, and what else the server does meanwhile."""
import os
import shutil
import statistics
import time

import disk
import stored
from larger import report
from stored import MIB

CHARS = 400_000  # about 131,000 tokens, half a GiB
ROUNDS = 5
NOT_SAVED, SAVED = "1", "4GiB"  # --store-bytes
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


def round_of(bin_dir, directory, quota, text, other):
    """Seconds of an upload, tokens per second of the answer that follows it at once, and what the save found left to do."""
    store = stored.Store(bin_dir, directory, *FLAGS, f"--store-bytes={quota}")
    store.directory.parent.mkdir()
    with store.server() as server:
        stored.upload(server, other, "other")
        started = time.monotonic()
        stored.upload(server, text, "text")
        upload = time.monotonic() - started
        completed = stored.ask(server, "other", max_new_tokens=150)[1]
        rate = float(completed["timings"]["tokens_per_second"])
        if quota == NOT_SAVED:
            return upload, rate, None
        started = time.monotonic()
        saved = int(stored.save(server, "text")["stored_bytes"])
        return upload, rate, (saved, time.monotonic() - started)


def measure(bin_dir, directory, _limits):
    text, other = directory / "text.txt", directory / "other.txt"
    text.write_text(stored.words(1, CHARS))
    other.write_text(stored.words(2, 30_000))
    rounds = {quota: [] for quota in (NOT_SAVED, SAVED)}
    for number in range(ROUNDS):
        for quota, done in rounds.items():
            place = directory / f"{number}-{quota}"
            done.append(round_of(bin_dir, place, quota, text, other))
            shutil.rmtree(place)
            stored.drop_file_cache()
    upload, answer = ({quota: statistics.median(one[column] for one in done) for quota, done in rounds.items()}
                      for column in (0, 1))
    saved, seconds = max((done[2] for done in rounds[SAVED]), key=lambda one: one[1])
    written = synced_write_rate(directory)
    rate = saved / seconds / written
    decode, prefill = answer[SAVED] / answer[NOT_SAVED], upload[NOT_SAVED] / upload[SAVED]
    faults = [f"{what} at {ratio:.2f}, the goal is {goal}" for what, ratio, goal in
              (("writing", rate, LEAST_RATE), ("decode beside it", decode, LEAST_DECODE), ("prefill", prefill, LEAST_PREFILL))
              if ratio < goal]
    figures = (f"{saved / MIB:.0f} MiB on disk {seconds:.2f} s after their upload: {rate:.2f} (goal {LEAST_RATE}) of the rate at which "
               f"files of 4 MiB are written and synced, {written / 1e9:.2f} GB/s; an answer right after the upload at {decode:.2f} "
               f"(goal {LEAST_DECODE}), prefill at {prefill:.2f} (goal {LEAST_PREFILL}) of those that are not saved, medians of "
               f"{ROUNDS} rounds")
    return report("save", figures, faults)
