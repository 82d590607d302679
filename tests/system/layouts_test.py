"""Checkpoints in ten layouts and more start as they are, and answer as instruct models over a document."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from running_server import RunningServer  # noqa: E402
from small_layouts import GOLDEN, LAYOUTS, make  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))


class LayoutsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-layouts-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.text = self.directory / "text.txt"
        self.text.write_text("Now it came to pass.")

    def answer(self, model):
        """What the server says of its model, and the events of an answer over a document."""
        with RunningServer(BIN, model, "--kv-bytes=50000000") as server:
            info = json.loads(server.folio("--json", "info").stdout)
            asked = server.folio("--json", "ask", "--document", self.text, "--question", "When?", "--max-new-tokens", 4,
                                 "--ignore-eos", "--system", "")
            self.assertEqual(asked.returncode, 0, f"{model}: {asked.stderr}")
        return info, [json.loads(line) for line in asked.stdout.splitlines()]

    def test_each_starts_unedited_and_answers_in_its_chat_format(self):
        for name in LAYOUTS:
            with self.subTest(name):
                model = self.directory / name
                chat_format = make(name, model)
                info, events = self.answer(model)
                self.assertEqual(info["chat_format"], chat_format)
                accepted = next(event["accepted"] for event in events if "accepted" in event)
                self.assertEqual(accepted["format"], "PROMPT_FORMAT_CHAT")
                completed = next(event["completed"] for event in events if "completed" in event)
                self.assertEqual(int(completed["usage"]["completion_tokens"]), 4)

    def test_so_does_a_gguf_file(self):
        for path in sorted(GOLDEN.glob("gguf/*/*.gguf")):
            with self.subTest(path.parent.name):
                _, events = self.answer(path)
                self.assertTrue(any("completed" in event for event in events))


if __name__ == "__main__":
    unittest.main()
