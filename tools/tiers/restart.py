"""A server with many documents and a large one is killed and started again."""
import subprocess
import time

import stored
from larger import report
from stored import MIB

NUM_SMALL, LARGE_CHARS = 1000, 3_120_000  # a little over a million tokens
MOST_START, MOST_FIRST, MOST_NEXT = 1.0, 0.3, 0.03
SMALL_CHARS = 2000
# The chunk summaries of a million tokens stay in memory.
FLAGS = [f"--kv-bytes={512 * MIB}", "--kv-disk-bytes=20GiB", "--store-bytes=20GiB", "--max-documents=10000",
         "--max-document-bytes=1GiB"]


def fill(server, directory, num_small, large_chars):
    """Uploads the documents and waits until they are saved; seconds for the large one, and its tokens."""
    small = directory / "small.txt"
    for number in range(num_small):
        small.write_text(stored.words(number, SMALL_CHARS))
        stored.upload(server, small, f"small-{number:04}")
    large = directory / "large.txt"
    large.write_text(stored.words(0, large_chars))
    started = time.monotonic()
    stored.upload(server, large, "large")
    seconds = time.monotonic() - started
    for document in [f"small-{number:04}" for number in range(num_small)] + ["large"]:
        saved = stored.save(server, document)
    return seconds, int(saved["token_count"])


def measure(bin_dir, directory, _limits, num_small=NUM_SMALL, large_chars=LARGE_CHARS):
    store = stored.Store(bin_dir, directory, *FLAGS)
    faults = []
    with store.server() as server:
        prefill, num_tokens = fill(server, directory, num_small, large_chars)
        before, _ = stored.ask(server, "large")
        server.process.kill()
        server.process.wait()
    dropped = stored.drop_file_cache()
    # All but the programs: after a crash the system has them, and a hundred shared libraries are not what this is about.
    for program in ("folio-server", "folio"):
        subprocess.run([store.bin_dir / program, "--help"], stdout=subprocess.DEVNULL, check=True)
    started = time.monotonic()
    with store.server() as server:
        documents = stored.listed(server)
        start = time.monotonic() - started
        after, completed = stored.ask(server, "large")
        first = completed["timings"]["time_to_first_token_seconds"]
        per_token = 1 / completed["timings"]["tokens_per_second"]
        _, small = stored.ask(server, "small-0000")
    if len(documents) != num_small + 1 or not all(document["saved"] for document in documents):
        faults.append(f"{len(documents)} documents are listed")
    if after != before:
        faults.append("the answer differs from that before the restart")
    if int(completed["usage"]["cached_tokens"]) != num_tokens:
        faults.append(f"{completed['usage']['cached_tokens']} tokens were reused")
    if int(small["usage"]["cached_tokens"]) == 0:
        faults.append("a small document was computed again")
    for what, seconds, goal in (("start", start, MOST_START), ("first token", first, MOST_FIRST),
                                ("next tokens", per_token, MOST_NEXT)):
        if seconds > goal:
            faults.append(f"{what}: {seconds:.3f} s, the goal is {goal} s")
    figures = (f"{num_small} documents and one of {num_tokens} tokens, kill -9, file cache {'dropped' if dropped else 'NOT dropped'} but for the programs: "
               f"all listed after {start:.2f} s (goal {MOST_START}), first token {first:.3f} s (goal {MOST_FIRST}; prefill {prefill:.0f} s), "
               f"then {per_token * 1000:.1f} ms (goal {MOST_NEXT * 1000:.0f})")
    return report("restart", figures, faults)
