"""A server that stores documents, and its client: what the rows about restarts share."""
import json
import pathlib
import subprocess
import time

from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "folio-tiny"
MIB = 1 << 20


def words(seed, num_chars):
    """Another text for each seed."""
    ezekiel = (ROOT / "models" / "texts" / "ezekiel.txt").read_text()
    at = ezekiel.index(" ", seed * 7919 % (len(ezekiel) // 2))
    return f"Report {seed}. " + (ezekiel[at:] * (num_chars // (len(ezekiel) - at) + 1))[:num_chars]


class Store:
    """`with store.server() as server:` any number of times, all with the same directory."""

    def __init__(self, bin_dir, directory, *flags):
        self.bin_dir, self.directory = pathlib.Path(bin_dir), pathlib.Path(directory) / "kv"
        self.flags = [f"--kv-dir={self.directory}", *flags]

    def server(self, model=MODEL):
        return RunningServer(self.bin_dir, model, *self.flags)

    def files(self):
        """Of documents, of the trash and of the quarantine."""
        return {name: [path for path in (self.directory / "store" / name).rglob("*") if path.is_file()]
                for name in ("documents", "trash", "quarantine")}


def check(done):
    if done.returncode != 0:
        raise RuntimeError(done.stderr + done.stdout)
    return done


def upload(server, path, document, *flags):
    return check(server.folio("upload", path, "--id", document, *flags))


def save(server, document):
    return json.loads(check(server.folio("--json", "docs", "save", document)).stdout)


def ask(server, document, question="What does it say?", max_new_tokens=8, strategy=None):
    """Token ids of the greedy answer, and the last event."""
    flags = [] if strategy is None else ["--strategy", strategy]
    done = check(server.folio("--json", "ask", "--document", document, "--question", question, "--max-new-tokens",
                              max_new_tokens, "--ignore-eos", *flags))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ids = [token for event in events if "delta" in event for token in event["delta"]["token_ids"]]
    return ids, events[-1]["completed"]


def listed(server):
    return [json.loads(line) for line in check(server.folio("--json", "docs")).stdout.splitlines()]


def drop_file_cache():
    """Whether the system has forgotten the files that it had read."""
    subprocess.run(["sync"], check=True)
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def seconds_until(condition):
    started = time.monotonic()
    while not condition():
        time.sleep(0.005)
    return time.monotonic() - started
