"""A document whose cache is larger than the memory for it, beside the same document in memory."""
import contextlib
import json
import pathlib
import time

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "folio-tiny"
MIB = 1 << 20
KEY = 48217
FACT = f" The pass key is {KEY}. Remember it. {KEY} is the pass key. "
QUESTION = "What is the pass key? The pass key is"
MEMORY_BYTES = (64 + 68) * MIB  # for pages, and for the chunk summaries of LONG tokens, which stay in memory
BESIDE_BYTES = 128 * MIB  # weights, activations, tokens, the program
LEAST_PREFILL, LEAST_DECODE = 0.7, 0.9
LONG = 524_288
CHOOSING = "long_heads"
READING_ALL = ["full", "lm_infinite:top_tokens=5,top_from_layer=0"]
ANSWER_TOKENS = 200


def text_of(num_tokens):
    """A text of about so many tokens with the fact at 40 %."""
    ezekiel = (ROOT / "models" / "texts" / "ezekiel.txt").read_text()
    num_chars = int(num_tokens * 3.1)
    text = (ezekiel * (num_chars // len(ezekiel) + 1))[:num_chars]
    at = text.index(" ", int(0.4 * num_chars))
    return text[:at] + FACT + text[at:]


class Documents:
    """Two servers with the same document: one has all of its cache in memory."""

    def __init__(self, bin_dir, directory, num_tokens, memory_bytes):
        self.flags = {"memory": [], "disk": [f"--kv-bytes={memory_bytes}", f"--kv-dir={directory / 'kv'}"]}
        self.memory_bytes, self.bin_dir, self.path = memory_bytes, bin_dir, directory / "document.txt"
        self.path.write_text(text_of(num_tokens))
        self.servers, self.upload_seconds = {}, {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            for name, flags in self.flags.items():
                self.servers[name] = stack.enter_context(RunningServer(self.bin_dir, MODEL, *flags))
                self.upload_seconds[name] = self.upload(self.servers[name])
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def upload(self, server):
        started = time.monotonic()
        done = server.folio("upload", self.path, "--id", "document")
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return time.monotonic() - started

    def ask(self, name, strategy, max_new_tokens=ANSWER_TOKENS):
        """Token ids of the greedy answer, its text, and tokens per second after the first."""
        done = self.servers[name].folio("--json", "ask", "--document", "document", "--question", QUESTION, "--strategy", strategy,
                                        "--max-new-tokens", max_new_tokens, "--ignore-eos")
        if done.returncode != 0:
            raise RuntimeError(done.stderr + done.stdout)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        deltas = [event["delta"] for event in events if "delta" in event]
        ids = [token for delta in deltas for token in delta["token_ids"]]
        return ids, "".join(delta["text"] for delta in deltas), events[-1]["completed"]["timings"]["tokens_per_second"]

    def faults_of(self, strategy, finds_key):
        """What is wrong with the answers of both servers under a strategy."""
        memory, disk = (self.ask(name, strategy) for name in ("memory", "disk"))
        faults = []
        if memory[0] != disk[0]:
            faults.append(f"{strategy}: the answer from disk differs from that from memory")
        if finds_key and str(KEY) not in disk[1]:
            faults.append(f"{strategy}: the pass key was not found: {disk[1]!r}")
        return faults

    def decode_ratio(self, strategy, rounds=3):
        """Tokens per second from disk beside those from memory: the best of some rounds of both."""
        rates = {name: [] for name in self.servers}
        for _ in range(rounds):
            for name in rates:
                rates[name].append(self.ask(name, strategy)[2])
        return max(rates["disk"]) / max(rates["memory"])

    def resident_faults(self):
        status = pathlib.Path(f"/proc/{self.servers['disk'].process.pid}/status").read_text()
        resident = int(status.split("VmHWM:")[1].split()[0]) << 10
        if resident <= self.memory_bytes + BESIDE_BYTES:
            return []
        return [f"{resident // MIB} MiB were resident, the budgets are {(self.memory_bytes + BESIDE_BYTES) // MIB} MiB"]

    def disk_bytes(self):
        return self.servers["disk"].metrics()['folio_kv_cache_bytes{tier="disk",state="used"}']


def report(row, figures, faults):
    print(f"{row:8} {figures}  {'; '.join(faults) or 'ok'}", flush=True)
    return [f"{row}: {fault}" for fault in faults]


def measure(bin_dir, directory, _limits):
    faults = []
    with Documents(bin_dir, directory, LONG, MEMORY_BYTES) as documents:
        faults += documents.faults_of(CHOOSING, finds_key=True)
        prefill = documents.upload_seconds["memory"] / documents.upload_seconds["disk"]
        decode = documents.decode_ratio(CHOOSING)
        on_disk = documents.disk_bytes()
        faults += documents.resident_faults()
    if prefill < LEAST_PREFILL:
        faults.append(f"prefill at less than {LEAST_PREFILL} of the speed in memory")
    if decode < LEAST_DECODE:
        faults.append(f"decode at less than {LEAST_DECODE} of the speed in memory")
    figures = (f"{LONG} tokens, {on_disk / MIB:.0f} MiB on disk, {MEMORY_BYTES // MIB} MiB of memory, half of it chunk summaries: prefill {prefill:.2f} "
               f"(goal {LEAST_PREFILL}), decode {decode:.2f} (goal {LEAST_DECODE}) of the speed in memory")
    return report("larger", figures, faults)
