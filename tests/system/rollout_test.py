"""Two servers behind one target, as in a rollout: one of them leaves, and no call fails."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
NUM_CALLS = 400
# An open loop: calls still come long after the first ones are answered, however fast the machine is.
CALLS_PER_SECOND = 200


class RolloutTest(unittest.TestCase):
    def start(self):
        server = RunningServer(BIN, MODEL, "--kv-bytes=100000000", "--threads=1").__enter__()
        self.addCleanup(server.__exit__)
        return server

    def completed(self, server):
        return sum(value for name, value in server.metrics().items()
                   if name.startswith("folio_request_success_total"))

    def test_no_new_call_fails_while_one_of_two_servers_drains(self):
        leaving, staying = self.start(), self.start()
        # Keeps the drain from ending: the server that leaves listens, and refuses, to the end of the test.
        held = subprocess.Popen(
            [str(BIN / "folio"), "ask", "--question", "Once", "--max-new-tokens", "16000", "--ignore-eos",
             "--strategy", "full"], env=leaving.environment(), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        self.addCleanup(held.kill)
        wait_for(lambda: leaving.metrics()["folio_num_requests_running"] == 1, "one answer runs")
        load = subprocess.Popen(
            [str(BIN / "folio-loadtest"), "--server", f"ipv4:{leaving.address},{staying.address}", "--rate",
             str(CALLS_PER_SECOND), "--num-requests", str(NUM_CALLS), "--prompt-tokens", "16:1",
             "--output-tokens", "4:1", "--json"],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(load.kill)
        wait_for(lambda: self.completed(leaving) >= 20, "the server that will leave answers calls")
        leaving.process.send_signal(signal.SIGTERM)
        result = json.loads(load.communicate()[0])
        self.assertEqual((result["completed"], result["failed"]), (NUM_CALLS, 0), result["status_codes"])
        self.assertIsNone(leaving.process.poll(), "the drain ended before the calls did")
        self.assertGreater(self.completed(staying), self.completed(leaving))
        held.send_signal(signal.SIGINT)
        held.wait()
        self.assertEqual(leaving.process.wait(60), 0)


if __name__ == "__main__":
    unittest.main()
