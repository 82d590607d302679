"""LoRA adapters through server and client: chosen by requests, kept apart over restarts, refused where they are bad."""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
TEXT = (ROOT / "models" / "texts" / "ezekiel.txt").read_text()[:6000]
RANK = 4


def write_adapter(directory, seed, **fields):
    """An adapter of q and v of every layer, as PEFT saves one."""
    model = json.loads((MODEL / "config.json").read_text())
    hidden, layers = model["hidden_size"], model["num_hidden_layers"]
    numbers = random.Random(seed)
    header, data = {}, b""
    for layer in range(layers):
        for module in ("q_proj", "v_proj"):
            for matrix, shape in (("A", [RANK, hidden]), ("B", [hidden, RANK])):
                values = [numbers.gauss(0, 0.3) for _ in range(RANK * hidden)]
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}.lora_{matrix}.weight"
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
                data += struct.pack(f"<{len(values)}f", *values)
    directory.mkdir(exist_ok=True)
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none", "target_modules": ["q_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config | fields))


class AdapterTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-adapters-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.text = self.directory / "text.txt"
        self.text.write_text(TEXT)
        for seed, name in enumerate(("poet", "clerk")):
            write_adapter(self.directory / name, seed)

    def server(self, *names):
        return RunningServer(BIN, MODEL, "--kv-bytes=50000000", f"--kv-dir={self.directory / 'kv'}",
                             *(f"--lora={name}={self.directory / name}" for name in names))

    def ask(self, server, *args):
        """The tokens of the answer, and what was said at its end."""
        result = server.folio("--json", "ask", "--question", "What came to pass?", "--max-new-tokens", 8, *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        tokens = [token for event in events for token in event.get("delta", {}).get("token_ids", [])]
        return tokens, next(event["completed"] for event in events if "completed" in event)

    def document(self, server, name):
        return json.loads(server.folio("--json", "docs", "show", name).stdout)

    def cached(self, completed):
        return int(completed["usage"].get("cached_tokens", 0))

    def test_requests_choose_and_documents_keep_what_they_were_uploaded_for(self):
        with self.server("poet", "clerk") as server:
            info = json.loads(server.folio("--json", "info").stdout)
            self.assertEqual([(adapter["name"], adapter["rank"]) for adapter in info["adapters"]],
                             [("poet", RANK), ("clerk", RANK)])
            self.assertIn("adapter     poet: rank 4, q_proj, v_proj", server.folio("info").stdout)
            answers = [self.ask(server, *flags)[0] for flags in ((), ("--adapter", "poet"), ("--adapter", "clerk"))]
            self.assertEqual(len({tuple(answer) for answer in answers}), 3)
            self.assertEqual(self.ask(server)[0], answers[0])

            unknown = server.folio("ask", "--question", "x", "--adapter", "nobody")
            self.assertNotEqual(unknown.returncode, 0)
            self.assertIn("no adapter 'nobody' is loaded", unknown.stderr)
            self.assertIn("folio info", unknown.stderr)
            for subject in (("--question", "x"), ("--document-tokens", 100)):
                estimated = server.folio("estimate", *subject, "--adapter", "poet")
                self.assertEqual(estimated.returncode, 0, estimated.stderr)
                unknown = server.folio("estimate", *subject, "--adapter", "nobody")
                self.assertIn("no adapter 'nobody' is loaded", unknown.stderr)

            uploaded = server.folio("upload", self.text, "--id", "book", "--adapter", "poet")
            self.assertEqual(uploaded.returncode, 0, uploaded.stderr)
            self.assertEqual(self.document(server, "book")["adapter"], "poet")
            own, completed = self.ask(server, "--document", "book")
            self.assertEqual(self.cached(completed), int(self.document(server, "book")["token_count"]))
            other, completed = self.ask(server, "--document", "book", "--adapter", "clerk")
            self.assertEqual(self.cached(completed), 0)
            plain, completed = self.ask(server, "--document", "book", "--adapter", "")
            self.assertEqual(self.cached(completed), 0)
            self.assertEqual(len({tuple(answer) for answer in (own, other, plain)}), 3)
            wait_for(lambda: self.document(server, "book").get("saved"), "the document is saved")

        write_adapter(self.directory / "poet", seed=9)
        with self.server("poet") as server:  # of the same name, with other numbers
            changed, _ = self.ask(server, "--document", "book")
            self.assertNotEqual(changed, own)
            again = server.folio("upload", self.text, "--id", "again", "--adapter", "poet")
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertEqual(self.ask(server, "--document", "again")[0], changed)

        with self.server("clerk") as server:
            refused = server.folio("ask", "--question", "x", "--document", "book")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("'poet'", refused.stderr)
            self.assertIn("--lora poet=DIR", refused.stderr)
            self.assertEqual(self.document(server, "book")["state"], "STATE_FAILED")

    def test_a_bad_adapter_ends_the_start_with_one_line(self):
        cases = (({"use_dora": True}, "use_dora"), ({"r": 5}, "must have [5, 128]"), ({"bias": "all"}, "'bias'"),
                 ({"target_modules": ["q_proj", "v_proj", "lm_head"]}, "'lm_head'"))
        for fields, message in cases:
            write_adapter(self.directory / "bad", 1, **fields)
            result = subprocess.run([str(BIN / "folio-server"), f"--model={MODEL}", "--listen=127.0.0.1:0",
                                     "--metrics-listen=off", "--kv-bytes=50000000",
                                     f"--lora=bad={self.directory / 'bad'}"],
                                    capture_output=True, text=True, timeout=120)
            self.assertNotEqual(result.returncode, 0)
            lines = [line for line in (result.stdout + result.stderr).splitlines() if "adapter 'bad'" in line]
            self.assertEqual(len(lines), 1, result.stdout + result.stderr)
            self.assertIn(message, lines[0])


if __name__ == "__main__":
    unittest.main()
