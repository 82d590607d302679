"""What every stage works with: its time, its programs, its lines."""
import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time

NO_DEVICE = "there is no CUDA device"
NO_TESTS = "0 tests from 0 test suites ran"


class OutOfTime(Exception):
    pass


# Set when this program is told to end: stages end, the archive is written.
over = threading.Event()
running = set()


def end_all(*_):
    over.set()
    for process in list(running):
        stop(process)


class Outcome:
    """How a program ended."""

    def __init__(self, code, seconds, log):
        self.code, self.seconds, self.log = code, seconds, log  # code None: stopped, its time was up

    def text(self):
        return self.log.read_text(errors="replace")

    def status(self):
        if NO_DEVICE in self.text():
            return "no gpu"
        if self.code is None:
            return "timeout"
        return "ok" if self.code == 0 and NO_TESTS not in self.text() else "failed"

    def values(self):
        """For a line: seconds, and what went wrong."""
        values = {"seconds": round(self.seconds, 2)}
        if self.status() != "ok":
            lines = [line for line in self.text().splitlines() if line.strip() and not line.startswith("{")]
            values |= {"code": self.code, "error": "\n".join(lines[-5:])[-1000:]}
        return values


def stop(process):
    """Ends a program and whatever it has started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def wait(process, deadline, said, quiet):
    """The exit code; None if it is still there at the deadline, or has said nothing for so long."""
    while (now := time.monotonic()) < min(deadline, said[0] + quiet):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(1, min(deadline, said[0] + quiet) - now))
    return process.poll()


class Stage:
    def __init__(self, name, bundle, results, deadline, rehearse):
        self.name, self.bundle, self.results, self.deadline, self.rehearse = name, bundle, results, deadline, rehearse
        self.bin = bundle / "bin"
        self.device = "cpu" if rehearse else "cuda"

    def left(self):
        """Seconds until the stage must end."""
        left = self.deadline - time.monotonic()
        if left <= 0 or over.is_set():
            raise OutOfTime
        return left

    def record(self, name, status, **values):
        return self.results.record(self.name, name, status, **values)

    def log(self, name):
        return self.results.logs / f"{self.name}-{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:80]}.log"

    def run(self, name, command, seconds=None, quiet=None, env=None, on_line=None):
        """Runs a program for at most the stage's time, or `seconds`, or `quiet` seconds without a line; its output goes to a
        log, line by line to on_line."""
        limit = min(self.left(), seconds or float("inf"))
        log = self.log(name)
        start = time.monotonic()
        try:
            process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, errors="replace", env={**os.environ, **(env or {})},
                                       start_new_session=True)
        except OSError as error:
            log.write_text(f"{error}\n")
            return Outcome(127, 0.0, log)

        running.add(process)
        said = [start]

        def read():
            with open(log, "w") as file:
                for line in process.stdout:
                    said[0] = time.monotonic()
                    file.write(line)
                    file.flush()
                    if on_line:
                        on_line(line)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            code = wait(process, start + limit, said, quiet or float("inf"))
        finally:
            stop(process)
            running.discard(process)
            reader.join(5)
        return Outcome(code, time.monotonic() - start, log)

    def check(self, name, command, **options):
        """Runs a program whose exit code is the result; one line."""
        outcome = self.run(name, command, **options)
        self.record(name, outcome.status(), **outcome.values())
        return outcome

    def forward(self, suffix="", seen=None):
        """on_line that records JSON lines of a program as they come; `seen` collects their names."""
        def on_line(line):
            if not line.startswith("{"):
                return
            with contextlib.suppress(json.JSONDecodeError):
                values = json.loads(line)
                name = values.pop("name") + suffix
                self.record(name, values.pop("status", "ok"), **values)
                if seen is not None:
                    seen.append(name)
        return on_line
