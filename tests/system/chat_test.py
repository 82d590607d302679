"""Checkpoints with chat templates as their users run them: recognised, stored, refused where the format has changed."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from running_server import RunningServer  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
CHAT = ROOT / "tests" / "golden" / "chat"
TEXT = (ROOT / "models" / "texts" / "ezekiel.txt").read_text()[:6000]
FAILED_PRECONDITION = 8


class ChatTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-chat-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.text = self.directory / "text.txt"
        self.text.write_text(TEXT)

    def model(self, chat_format):
        """Random weights with the tokenizer and template of the format."""
        path = self.directory / chat_format
        shape = {"layers": 2, "hidden_size": 64, "intermediate_size": 96, "heads": 4, "kv_heads": 2, "vocab_size": 520,
                 "trained_length": 512}
        subprocess.run([str(BIN / "folio-make-model"), f"--output={path}", "--dtype=fp32",
                        *(f"--{name}={value}" for name, value in shape.items())], check=True, capture_output=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(CHAT / chat_format / name, path)
        return path

    def ask(self, server, *args):
        result = server.folio("--json", "ask", "--question", "What came to pass?", "--max-new-tokens", 8, *args)
        return result, [json.loads(line) for line in result.stdout.splitlines()]

    def accepted(self, server, *args):
        result, events = self.ask(server, *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return next(event["accepted"] for event in events if "accepted" in event)

    def tokens(self, server, document):
        return [token for event in self.ask(server, "--document", document)[1] if "delta" in event
                for token in event["delta"]["token_ids"]]

    def test_an_instruct_checkpoint_needs_no_flag(self):
        for chat_format in ("chatml", "llama3", "llama2", "gemma", "phi3"):
            with RunningServer(BIN, self.model(chat_format), "--kv-bytes=50000000") as server:
                info = json.loads(server.folio("--json", "info").stdout)
                self.assertEqual(info["chat_format"], chat_format)
                accepted = self.accepted(server, "--document", self.text)
                self.assertEqual(accepted["format"], "PROMPT_FORMAT_CHAT")
                self.assertEqual(self.accepted(server, "--document", self.text, "--format", "raw")["format"],
                                 "PROMPT_FORMAT_RAW")
                self.assertGreater(int(self.accepted(server)["prompt_tokens"]),
                                   int(self.accepted(server, "--format", "raw")["prompt_tokens"]))

    def test_many_questions_are_answered_as_each_alone(self):
        questions = ("What came to pass?", "Who came?", "When?")
        with RunningServer(BIN, self.model("chatml"), "--kv-bytes=50000000") as server:
            alone = {}
            for question in questions:
                result = server.folio("--json", "ask", "--document", self.text, "--question", question,
                                      "--max-new-tokens", 8)
                events = [json.loads(line) for line in result.stdout.splitlines()]
                alone[question] = [t for e in events if "delta" in e for t in e["delta"]["token_ids"]]
            asked = [arg for question in questions for arg in ("--question", question)]
            result = server.folio("--json", "ask", "--document", self.text, *asked, "--answers", 2, "--max-new-tokens", 8)
            self.assertEqual(result.returncode, 0, result.stderr)
            events = [json.loads(line) for line in result.stdout.splitlines()]
            for number, question in enumerate(questions):
                for answer in range(2):
                    own = [e["event"] for e in events if "event" in e and e["question"] == number and e["answer"] == answer]
                    self.assertEqual([t for e in own if "delta" in e for t in e["delta"]["token_ids"]], alone[question])
                    self.assertIn("completed", own[-1])
            shown = server.folio("ask", "--document", self.text, *asked, "--max-new-tokens", 8).stdout
            self.assertTrue(all(question in shown for question in questions), shown)

    def test_a_prompt_with_several_answers_is_computed_once(self):
        computed = 'folio_prompt_tokens_total{source="computed"}'
        with RunningServer(BIN, self.model("chatml"), "--kv-bytes=50000000") as server:
            before = server.metrics()[computed]
            result = server.folio("--json", "ask", "--question", TEXT, "--answers", 4, "--max-new-tokens", 8)
            self.assertEqual(result.returncode, 0, result.stderr)
            events = [json.loads(line).get("event", {}) for line in result.stdout.splitlines()]
            usages = [event["completed"]["usage"] for event in events if "completed" in event]
            (prompt_tokens,) = {int(usage["prompt_tokens"]) for usage in usages}
            self.assertGreater(prompt_tokens, 1000)
            self.assertEqual(sorted(int(usage.get("cached_tokens", 0)) for usage in usages), [0] + 3 * [prompt_tokens - 1])
            self.assertEqual(server.metrics()[computed] - before, prompt_tokens + 3)

    def test_evidence_quotes_the_uploaded_bytes_whatever_is_in_front_of_them(self):
        for chat_format in ("chatml", "llama2"):
            with RunningServer(BIN, self.model(chat_format), "--kv-bytes=50000000", "--page-tokens=16") as server:
                _, events = self.ask(server, "--document", self.text, "--evidence", 16, "--strategy",
                                     "long_heads:chunk_size=16,attention_length=128")
                spans = next(e["evidence"] for e in events if "evidence" in e)["spans"]
                quoted = [s for s in spans if int(s["token_begin"]) > 200 and "byte_begin" in s]
                self.assertGreater(len(quoted), 5)
                for span in quoted:
                    begin, end = int(span["byte_begin"]), int(span["byte_end"])
                    self.assertEqual(span["text"].strip(), TEXT.encode()[begin:end].decode().strip())

    def test_a_stored_document_is_asked_in_its_own_format_only(self):
        model = self.model("chatml")
        flags = ("--kv-bytes=50000000", f"--kv-dir={self.directory / 'kv'}")
        with RunningServer(BIN, model, *flags) as server:
            self.assertEqual(server.folio("upload", self.text, "--id", "book", "--system", "Sum up.").returncode, 0)
            self.assertEqual(server.folio("docs", "save", "book").returncode, 0)
            before = self.tokens(server, "book")
            self.assertEqual(len(before), 8)
        with RunningServer(BIN, model, *flags) as server:
            self.assertEqual(self.tokens(server, "book"), before)
            _, events = self.ask(server, "--document", "book")
            self.assertEqual(events[-1]["completed"]["usage"]["cached_tokens"],
                             json.loads(server.folio("--json", "docs", "show", "book").stdout)["token_count"])
        for other in ("none", "zephyr"):
            with RunningServer(BIN, model, *flags, f"--chat-format={other}") as server:
                result, _ = self.ask(server, "--document", "book")
                self.assertEqual(result.returncode, FAILED_PRECONDITION, result.stderr)
                self.assertIn("another chat format", result.stderr)

    def test_a_template_that_is_not_known_is_named_and_a_file_can_stand_in_for_it(self):
        model = self.model("chatml")
        (model / "chat_template.jinja").write_text("{{ messages }}")
        with RunningServer(BIN, model, "--kv-bytes=50000000") as server:
            self.assertIn("chat template of the checkpoint is not known", server.folio("info").stdout)
            self.assertIn("chat template of the checkpoint is not known", server.log())
            self.assertEqual(self.accepted(server)["format"], "PROMPT_FORMAT_RAW")
        own = self.directory / "own.json"
        own.write_text(json.dumps({"user_begin": "<|im_start|>Q: ", "user_end": "<|im_end|>", "answer_begin": "A:"}))
        with RunningServer(BIN, model, "--kv-bytes=50000000", f"--chat-format={own}") as server:
            self.assertEqual(self.accepted(server)["format"], "PROMPT_FORMAT_CHAT")


if __name__ == "__main__":
    unittest.main()
