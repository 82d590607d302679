"""Full attention over a document that is not in memory: answers like those from memory, and how fast it is read from the
disk. Beside it the speed where the system has the files in its memory: then no disk limits it."""
import larger
import synthetic
from larger import MODEL, report
from stored import MIB

# To prefill half a million tokens takes hours where each token reads all before it: a shorter text is asked.
TOKENS, MEMORY_BYTES = 32_768, 16 * MIB
LEAST = 0.85  # of the rate at which the file is read in sequence
# Synthetic caches, whose files the system has forgotten before each token and before the plain reads of them that come
# after it: name, model, tokens, memory.
UNCACHED = (("folio-tiny", MODEL, 131_072, 64 * MIB), ("TinyLlama shape", synthetic.SHAPE, 65_536, 256 * MIB))


def share_of(what, rate, limit, faults):
    share = rate / limit
    if share < LEAST:
        faults.append(f"less than {LEAST} of the rate in sequence ({what})")
    return f"{what}: {rate / 1e9:.2f} GB/s, {share:.2f} of {limit / 1e9:.2f} GB/s in sequence"


def measure(bin_dir, directory, _limits):
    faults, figures = [], []
    with larger.Documents(bin_dir, directory, TOKENS, MEMORY_BYTES) as documents:
        for strategy in larger.READING_ALL:
            faults += documents.faults_of(strategy, finds_key=False)
        ratio = documents.decode_ratio("full")
        faults += documents.resident_faults()
    figures.append(f"{TOKENS} tokens, same answers, files cached by the system: {ratio:.2f} of the speed in memory (no goal)")
    for name, model, depth, memory_bytes in UNCACHED:
        run = synthetic.on_disk(bin_dir, directory, depth, memory_bytes, "--strategy=full", model=model, tokens=15)
        rate, limit = (run["missed_bytes"] / seconds for seconds in (run["seconds"], run["raw_seconds"][0]))
        figures.append(share_of(f"not cached: {name}, {depth} tokens", rate, limit, faults))
    return report("stream", f"full attention, {'; '.join(figures)} (goal {LEAST})", faults)
