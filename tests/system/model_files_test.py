"""Files of a model that are cut, replaced or deleted while it is served: nothing changes."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "system")]
from adapter_test import write_adapter  # noqa: E402
from running_server import RunningServer  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
GGUF = ROOT / "tests/golden/gguf/q8_0/model.gguf"
QUESTION = ("ask", "--question", "In the beginning", "--ignore-eos")


def cut(path):
    with open(path, "r+b") as file:
        file.truncate(0)


def replace(path):
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


def tokens(lines):
    events = [json.loads(line) for line in lines.splitlines()]
    return [token for event in events if "delta" in event for token in event["delta"]["token_ids"]]


class ModelFilesTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-model-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def ask(self, server, *flags):
        done = server.folio("--json", *QUESTION, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return tokens(done.stdout)

    def check(self, model, files, *flags, question=(), max_new_tokens=600):
        """Each way to lose the files, while an answer is under way; asked again, the server answers as before."""
        question = (*question, "--max-new-tokens", max_new_tokens)
        with RunningServer(BIN, model, "--kv-bytes=50000000", *flags) as server:
            expected = self.ask(server, *question)
            self.assertEqual(len(expected), max_new_tokens)
            for lose in (replace, cut, pathlib.Path.unlink):
                with self.subTest(lose=lose.__name__):
                    with server.start_folio("--json", *QUESTION, *question) as running:
                        self.addCleanup(running.kill)
                        lines = running.stdout.readline()  # it is under way
                        for path in files:
                            lose(path)
                        lines += running.stdout.read()
                    self.assertEqual(running.returncode, 0)
                    self.assertEqual(tokens(lines), expected)
                    self.assertEqual(self.ask(server, *question), expected)
            self.assertEqual(server.stop(), 0)

    def test_of_a_checkpoint(self):
        model = shutil.copytree(MODEL, self.directory / "model")
        self.check(model, list(model.iterdir()))

    def test_of_packed_weights(self):
        model = self.directory / "packed"
        subprocess.run([str(BIN / "folio-make-model"), f"--checkpoint={MODEL}", "--quantise=int8", f"--output={model}"], check=True,
                       capture_output=True)
        self.check(model, [path for path in model.iterdir() if path.is_file()])

    def test_of_a_gguf_file(self):
        model = pathlib.Path(shutil.copy(GGUF, self.directory / "model.gguf"))
        self.check(model, [model], max_new_tokens=200)

    def test_of_an_adapter(self):
        adapter = self.directory / "poet"
        write_adapter(adapter, seed=1)
        self.check(MODEL, list(adapter.iterdir()), f"--lora=poet={adapter}", question=("--adapter", "poet"))


if __name__ == "__main__":
    unittest.main()
