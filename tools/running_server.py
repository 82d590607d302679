"""Starts a folio-server on free ports, waits for what it does and stops it again. Used by the demo, the benchmarks and the
system tests."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.request

START_SECONDS = 120


def wait_for(condition, what, seconds=300):
    """Polls until the condition holds: these are other processes, there is nothing to wait on."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not reached: {what}")
        time.sleep(0.02)


class RunningServer:
    """`with RunningServer(bin_dir, model, ...) as server:` — server.address, server.metrics()."""

    def __init__(self, bin_dir, model, *flags, start_seconds=START_SECONDS, stdout=None, client_environment=None,
                 processors=None):
        self.bin_dir, self.start_seconds, self.stdout = pathlib.Path(bin_dir), start_seconds, stdout
        self.client_environment = client_environment or {}
        self.directory = tempfile.TemporaryDirectory(prefix="folio-")
        self.port_file = pathlib.Path(self.directory.name) / "ports.json"
        self.log_path = pathlib.Path(self.directory.name) / "server.log"
        pinned = ["taskset", "--cpu-list", processors] if processors else []
        self.command = [*pinned, str(self.bin_dir / "folio-server"), f"--model={model}", "--listen=127.0.0.1:0",
                        "--metrics-listen=127.0.0.1:0", f"--port-file={self.port_file}", *flags]

    def __enter__(self):
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdout=self.stdout or log, stderr=log)
        deadline = time.monotonic() + self.start_seconds
        while not self.port_file.exists() or not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"folio-server did not start:\n{self.log()}")
            time.sleep(0.05)
        return self

    def _ready(self):
        ports = json.loads(self.port_file.read_text())
        self.address = f"127.0.0.1:{ports['grpc']}"
        self.metrics_url = f"http://127.0.0.1:{ports['metrics']}/metrics"
        return self.folio("info").returncode == 0

    def __exit__(self, *_):
        self.stop()
        self.directory.cleanup()

    def stop(self, timeout=300):
        """Ends the server as Kubernetes does; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def environment(self):
        return dict(os.environ, FOLIO_SERVER=self.address, **self.client_environment)

    def folio(self, *args, **kwargs):
        """Runs the command line client to its end."""
        return subprocess.run([str(self.bin_dir / "folio"), *map(str, args)], env=self.environment(),
                              capture_output=True, text=True, **kwargs)

    def start_folio(self, *args):
        """Starts the client with its output on a pipe."""
        return subprocess.Popen([str(self.bin_dir / "folio"), *map(str, args)], env=self.environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def metrics(self):
        """{'name{labels}': value} of the Prometheus endpoint."""
        with urllib.request.urlopen(self.metrics_url, timeout=60) as response:
            lines = response.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in lines if line and not line.startswith("#")}
