"""The server as a process: what the kernel does and says of it."""
import contextlib
import os
import pathlib
import re
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_BYTES = 1 << 30
KV_BYTES, FILL_BYTES = 128 << 20, 95_000  # of the KV cache, and of text whose tokens nearly fill it


def fill_cache(server):
    """Has most of a cache of KV_BYTES used once, so that the system has given all of its memory."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write((ROOT / "models" / "texts" / "ezekiel.txt").read_text()[:FILL_BYTES])
        file.flush()
        for command in (["upload", file.name, "--id", "fill"], ["docs", "delete", "fill"]):
            done = server.folio(*command)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)


class Cgroup:
    """1 GiB for a process where this one may make cgroups (v1 or v2); else only measured."""

    def __init__(self):
        for base, file in ((pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
                           (pathlib.Path("/sys/fs/cgroup"), "memory.max")):
            directory = base / f"folio-abuse-{os.getpid()}"
            with contextlib.suppress(OSError):
                directory.mkdir()
                with contextlib.suppress(OSError):
                    (directory / file).write_text(str(LIMIT_BYTES))
                    self.directory = directory
                    return
                directory.rmdir()
        self.directory = None

    def add(self, pid):
        """Whether the process is limited from now on."""
        if self.directory is None:
            return False
        with contextlib.suppress(OSError):
            (self.directory / "cgroup.procs").write_text(str(pid))
            return True
        return False

    def remove(self):
        if self.directory is not None:
            with contextlib.suppress(OSError):
                self.directory.rmdir()


class Process:
    def __init__(self, pid):
        self.directory = pathlib.Path(f"/proc/{pid}")

    def _status(self, name):
        match = re.search(rf"^{name}:\s+(\d+) kB", (self.directory / "status").read_text(), re.M)
        return int(match.group(1)) * 1024

    def resident(self):
        return self._status("VmRSS")

    def peak(self):
        return self._status("VmHWM")

    def forget_peak(self):
        with contextlib.suppress(OSError):  # then the peak is that of all attacks so far
            (self.directory / "clear_refs").write_text("5")

    def descriptors(self):
        return len(list((self.directory / "fd").iterdir()))

    def threads(self):
        return len(list((self.directory / "task").iterdir()))
