"""A server from its start to its end: signals, drains, pauses, steps that are stuck, and the exit code of each end."""
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "tiers")]
import raw_http2  # noqa: E402
import stored  # noqa: E402
import unfinished  # noqa: E402
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
RUNBOOK = ROOT / "docs/runbook.md"
SMALL = "--kv-bytes=200000000"
ENDLESS = ("ask", "--question", "Once", "--max-new-tokens", 16000, "--strategy", "lm_infinite", "--ignore-eos")
# server/exit_code.h.
BAD_CONFIG, CANNOT_LISTEN, CANNOT_LOAD, NO_MEMORY, HANGS = 1, 2, 3, 4, 5


class Answer:
    """An answer that is under way, read as it comes."""

    def __init__(self, server, *args):
        self.process = server.start_folio("--json", *args)
        self.lines = []
        self.reader = concurrent.futures.ThreadPoolExecutor(1)
        self.rest = self.reader.submit(self._read)
        wait_for(lambda: any('"delta"' in line for line in self.lines) or self.rest.done(), "the answer has begun")

    def _read(self):
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def end(self):
        """Its exit code and what it has said on stderr."""
        self.rest.result(300)
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error

    def close(self):
        self.process.kill()
        self.rest.result(60)
        self.reader.shutdown()
        with self.process:
            pass

    def tokens(self):
        events = [json.loads(line) for line in self.lines]
        return [token for event in events if "delta" in event for token in event["delta"]["token_ids"]]


def health(server):
    """What a liveness probe gets."""
    try:
        with urllib.request.urlopen(server.metrics_url.rsplit("/", 1)[0] + "/healthz", timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


class LifecycleCase(unittest.TestCase):
    def start(self, *flags, model=MODEL):
        server = RunningServer(BIN, model, SMALL, *flags).__enter__()
        self.addCleanup(server.__exit__)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def answer(self, server, *args):
        answer = Answer(server, *args)
        self.addCleanup(answer.close)
        return answer


class SigquitTest(LifecycleCase):
    def test_it_says_what_runs_and_the_server_goes_on(self):
        server = self.start("--log-level=error")
        answer = self.answer(server, *ENDLESS)
        server.process.send_signal(signal.SIGQUIT)
        wait_for(lambda: "call '" in server.log(), "the report is in the log")
        report = server.log()
        for line in (r"folio-server \S+: serving, up \d+\.\d s", r"threads: engine (in a step|idle) for \d+\.\d s; event pump \d+\.\d s ago",
                     r"last step: [\d.]*[1-9]\d* s for [01] answers and \d+ tokens of prompts; [1-9]\d* steps",
                     r"requests: 1 run, 0 wait", r"KV cache, bytes: [1-9]\d* of \d+ used", r"memory, bytes: [1-9]\d* of \d+ of requests",
                     r"connections: [1-9]\d* of \d+",
                     r"call '[\w-]+': Generate of 127\.0\.0\.1, lm_infinite; is answered, \d+\.\d s old; prompt 3 of 3 tokens computed, "
                     r"answer [1-9]\d* of at most 16000"):
            self.assertRegex(report, line)
        self.assertNotIn("Once", report)
        self.assertEqual(server.folio("info").returncode, 0)
        answer.process.send_signal(signal.SIGINT)
        answer.end()
        self.assertEqual(server.stop(), 0)

    def test_it_is_json_where_the_log_is_and_comes_during_a_drain(self):
        server = self.start("--log-json")
        answer = self.answer(server, *ENDLESS)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining for at most" in server.log(), "the drain has begun")
        server.process.send_signal(signal.SIGQUIT)
        wait_for(lambda: "call '" in server.log(), "the report is in the log")
        messages = [json.loads(line).get("message", "") for line in server.log().splitlines(keepends=True) if line.endswith("\n")]
        self.assertTrue(any(": draining, up" in message for message in messages), messages)
        answer.process.kill()
        self.assertEqual(server.process.wait(60), 0)


class DrainTest(LifecycleCase):
    def test_a_second_signal_ends_it_at_once(self):
        for second in (signal.SIGTERM, signal.SIGINT):
            server = self.start("--drain-seconds=3000")
            answer = self.answer(server, *ENDLESS)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda server=server: "draining for at most" in server.log(), "the drain has begun")
            self.assertIsNone(server.process.poll())
            server.process.send_signal(second)
            self.assertEqual(server.process.wait(60), 0)
            code, error = answer.end()
            self.assertNotEqual(code, 0)
            self.assertIn("the server is stopping", error)

    def test_an_upload_is_ended_and_goes_on_with_the_next_server(self):
        with tempfile.TemporaryDirectory(prefix="folio-drain-") as folder:
            store = stored.Store(BIN, folder, "--drain-seconds=3000", "--kv-bytes=100000000")
            text = stored.words(3, 40_000).encode()
            with store.server() as server:
                answer = self.answer(server, "ask", "--question", "Once", "--max-new-tokens", 300, "--strategy", "lm_infinite", "--ignore-eos")
                with unfinished.Upload(server.address, "book") as upload:
                    upload.send_text(text, 25_000)
                    wait_for(lambda: int(unfinished.state(server, "book")["size_bytes"]) >= 25_000, "the server has the text")
                    server.process.send_signal(signal.SIGTERM)
                    with self.assertRaises(raw_http2.Closed):
                        upload.event(unfinished.READY)
                # The upload did not hold the drain up, and the answer is whole.
                self.assertEqual(server.process.wait(120), 0)
                self.assertEqual(answer.end()[0], 0)
                self.assertEqual(len(answer.tokens()), 300)
                refused = re.findall(r"method=UploadDocument code=(\w+) reason=(\w+)", server.log())
                self.assertEqual(refused, [("UNAVAILABLE", "DRAINING")])
            with store.server() as server:
                left = unfinished.state(server, "book")
                self.assertEqual(left["state"], "STATE_UPLOADING")
                self.assertGreater(int(left["size_bytes"]), 0)
                self.assertEqual(unfinished.go_on(server, "book", text), int(left["size_bytes"]))
                self.assertEqual(unfinished.state(server, "book")["state"], "STATE_READY")


class StuckCase(LifecycleCase):
    def start_stuck(self, *flags):
        """A server in a step that takes a minute, and the call that it is of."""
        server = self.start("--step-tokens=60000", "--prefill-share-tokens=60000", "--prefill-slowdown=0", "--threads=1",
                            "--cpu-isa=portable", *flags, model="synthetic:tiny")
        asking = server.start_folio("ask", "--question", "word " * 6000, "--max-new-tokens", 2, "--strategy", "full")
        self.addCleanup(asking.kill)
        wait_for(lambda: server.metrics()["folio_engine_busy"] == 1 and server.metrics()["folio_num_requests_running"] == 1, "the step runs")
        return server, asking

    def test_it_turns_liveness_and_ends_the_process(self):
        server, asking = self.start_stuck("--step-timeout-seconds=4")
        self.assertEqual(health(server), 200)
        server.process.send_signal(signal.SIGQUIT)
        wait_for(lambda: "call '" in server.log(), "the report comes from a server that is stuck", 10)
        self.assertRegex(server.log(), r"threads: engine in a step for \d+\.\d s")
        self.assertRegex(server.log(), r"call '[\w-]+': Generate of 127\.0\.0\.1, full; (waits|is prefilled), ")
        wait_for(lambda: health(server) == 503, "liveness turns before the process ends")
        self.assertEqual(server.process.wait(120), HANGS)
        self.assertIn("no step of the engine has ended for 4 s: the process ends", server.log())
        _, error = asking.communicate(timeout=60)
        self.assertIn("the server restarts", error)

    def test_it_does_not_keep_a_process_that_was_told_to_end_three_times(self):
        server, asking = self.start_stuck()
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "draining for at most" in server.log(), "the drain has begun")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "stopped" in server.log(), "the drain is over")
        _, error = asking.communicate(timeout=60)
        self.assertIn("the server is stopping", error)
        self.assertIsNone(server.process.poll())
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(10), HANGS)


class PauseTest(LifecycleCase):
    """Whether a step was under way is chance here; tests/server/liveness_test.cc has that moment by a clock of its own."""

    def test_a_process_that_was_stopped_goes_on(self):
        server = self.start("--step-timeout-seconds=2")
        question = ("ask", "--question", "Once", "--max-new-tokens", 5000, "--strategy", "lm_infinite", "--ignore-eos")
        expected = self.answer(server, *question)
        self.assertEqual(expected.end()[0], 0)
        paused = self.answer(server, *question)
        for _ in range(3):
            server.process.send_signal(signal.SIGSTOP)
            # Longer than the timeout: nothing in a process that is stopped can be waited for.
            time.sleep(3)
            server.process.send_signal(signal.SIGCONT)
            self.assertEqual(server.folio("info").returncode, 0)
        self.assertEqual(paused.end()[0], 0)
        self.assertEqual(paused.tokens(), expected.tokens())
        self.assertNotIn("the process ends", server.log())
        self.assertEqual(server.stop(), 0)


class ExitCodeTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-exit-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_server(self, *flags, model=MODEL, memory=None, **environment):
        """(exit code, the one line of stderr)."""
        usual = {"--model": model, "--listen": "127.0.0.1:0", "--metrics-listen": "off", "--kv-bytes": "10000000"}
        given = usual | dict(flag.split("=", 1) for flag in flags)
        command = [str(BIN / "folio-server"), *(f"{flag}={value}" for flag, value in given.items())]
        limit = None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False,
                                preexec_fn=limit)
        lines = [line for line in result.stderr.splitlines() if line.startswith("folio-server: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        return result.returncode, lines[0]

    def assert_ends(self, code, said, *args, **kwargs):
        ended, line = self.run_server(*args, **kwargs)
        self.assertEqual(ended, code, line)
        self.assertIn(said, line)

    def test_bad_flags_and_files(self):
        bad = self.directory / "bad"
        bad.write_text("nonsense")
        self.assert_ends(BAD_CONFIG, "--threads", "--threads=-1")
        self.assert_ends(BAD_CONFIG, "FOLIO_THREADS", FOLIO_THREADS="many")
        self.assert_ends(BAD_CONFIG, "line 1", f"--config={bad}")
        self.assert_ends(BAD_CONFIG, str(bad), f"--tenants={bad}")
        self.assert_ends(BAD_CONFIG, str(bad), f"--tls-cert={bad}", f"--tls-key={bad}")

    def test_an_address_that_is_taken(self):
        with RunningServer(BIN, MODEL, SMALL) as server:
            self.assert_ends(CANNOT_LISTEN, server.address, f"--listen={server.address}")
            metrics = server.metrics_url.split("/")[2]
            self.assert_ends(CANNOT_LISTEN, metrics, f"--metrics-listen={metrics}")
        self.assert_ends(CANNOT_LISTEN, "nowhere", f"--port-file={self.directory}/nowhere/ports")

    def test_a_model_that_cannot_be_loaded(self):
        self.assert_ends(CANNOT_LOAD, "nowhere", model=self.directory / "nowhere")
        self.assert_ends(CANNOT_LOAD, "adapter 'a'", f"--lora=a={self.directory}")
        (self.directory / "kv" / "store").mkdir(parents=True)
        (self.directory / "kv" / "store" / "thesis.doc").write_text("years of work")
        self.assert_ends(CANNOT_LOAD, "store", f"--kv-dir={self.directory / 'kv'}")

    def test_memory_that_is_not_there(self):
        self.assert_ends(NO_MEMORY, "RLIMIT_AS", memory=200 << 20)
        self.assert_ends(NO_MEMORY, "lower --kv-bytes", "--kv-bytes=8GiB", memory=4 << 30)

    def test_a_signal_while_the_model_is_loaded(self):
        command = [str(BIN / "folio-server"), "--model=synthetic:llama-2-7b", "--weight-dtype=int4", "--listen=127.0.0.1:0",
                   "--metrics-listen=off", "--kv-bytes=100000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self.assertIn("loading", process.stdout.readline())
            process.terminate()
            self.assertEqual(process.wait(60), 0)

    def test_the_runbook_has_each(self):
        header = (ROOT / "server/exit_code.h").read_text()
        codes = {int(code) for code in re.findall(r"^  kExit\w+ = (\d+),$", header, re.M)}
        rows = [int(code) for code in re.findall(r"^\| (\d+) \|", RUNBOOK.read_text(), re.M)]
        self.assertEqual(rows, sorted(codes))
        self.assertGreater(len(rows), 6)


if __name__ == "__main__":
    unittest.main()
