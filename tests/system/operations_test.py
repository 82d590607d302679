"""What operators do with a real server: configure it by file, environment and flags, see what runs, end it, read its log."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"


class ConfigurationTest(unittest.TestCase):
    def print_config(self, *flags, **environment):
        result = subprocess.run([BIN / "folio-server", "--print-config", *flags], env={**os.environ, **environment},
                                capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def test_what_is_printed_is_printed_again_when_it_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "folio.toml")
            printed = self.print_config(f"--model={MODEL}", "--max-connections=10", "--lora=a=/b", FOLIO_KV_BYTES="3MiB")
            self.assertIn("\nkv-bytes = 3145728\n", printed)
            path.write_text(printed)
            self.assertEqual(self.print_config(f"--config={path}"), printed)
            self.assertEqual(self.print_config(FOLIO_CONFIG=str(path)), printed)

    def test_a_bad_key_ends_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "folio.toml")
            path.write_text("kv-byte = 1\n")
            result = subprocess.run([BIN / "folio-server", f"--config={path}"], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{path}, line 1: there is no key 'kv-byte'", result.stderr)


class OperationsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        config = pathlib.Path(folder, "folio.toml")
        # A bound that every step exceeds.
        config.write_text('kv-bytes = "200MB"\nlog-json = true\nslow-step-seconds = 1e-9\n')
        cls.server = cls.enterClassContext(RunningServer(BIN, MODEL, f"--config={config}"))

    def requests(self):
        listed = self.server.folio("--json", "requests")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        return [json.loads(line) for line in listed.stdout.splitlines()]

    def lines(self):
        """Lines of the log that are whole."""
        return [json.loads(line) for line in self.server.log().splitlines(keepends=True) if line.endswith("\n")]

    def test_a_call_is_seen_and_cancelled_and_logged(self):
        # Of several steps: the first may be over before the server knows whose it was.
        asking = self.server.start_folio("ask", "--question", "The sky is blue. " * 500, "--max-new-tokens", 16000, "--strategy", "full")
        self.addCleanup(asking.kill)
        wait_for(lambda: any(r["phase"] == "PHASE_DECODE" for r in self.requests()), "the answer is under way")
        request = self.requests()[0]
        self.assertEqual((request["method"], request["client"], request["strategy"]), ("Generate", "127.0.0.1", "full"))
        cancelled = self.server.folio("cancel", request["request_id"])
        self.assertEqual((cancelled.returncode, cancelled.stdout), (0, "1 cancelled\n"), cancelled.stderr)
        _, error = asking.communicate(timeout=60)
        self.assertNotEqual(asking.returncode, 0)
        self.assertIn("an operator cancelled the request", error)
        self.assertEqual(self.server.folio("cancel", request["request_id"]).returncode, 4)

        def logged():
            return [line for line in self.lines()
                    if (line.get("method"), line.get("request_id")) == ("Generate", request["request_id"])]
        wait_for(lambda: logged(), "the call is logged")
        line, = logged()
        self.assertEqual((line["method"], line["code"], line["strategy"]), ("Generate", "CANCELLED", "full"))
        self.assertGreater(line["prompt_tokens"], 0)
        self.assertGreater(line["completion_tokens"], 0)
        self.assertGreater(line["seconds"], line["decode_seconds"])
        self.assertGreater(line["decode_seconds"], 0)
        slow = [line["message"] for line in self.lines() if line.get("message", "").startswith("slow step: ")]
        self.assertTrue(any(f'of "{request["request_id"]}" after ' in message for message in slow), slow[:3])
        self.assertTrue(any("a token for each of 1 answers" in message for message in slow), slow[-3:])

    def test_the_metrics_port_says_health(self):
        url = self.server.metrics_url.rsplit("/", 1)[0]
        for path in ("/healthz", "/readyz"):
            with urllib.request.urlopen(url + path, timeout=10) as response:
                self.assertEqual(response.status, 200)
        with self.assertRaises(urllib.error.HTTPError):
            urllib.request.urlopen(url + "/other", timeout=10)


if __name__ == "__main__":
    unittest.main()
