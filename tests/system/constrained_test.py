"""Answers that are held to choices, expressions and schemas, through server and client."""
import json
import os
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from constrained_answers import SCHEMAS, answers_of, invalid  # noqa: E402
from running_server import RunningServer  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
INVALID_ARGUMENT = 3


class ConstrainedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(RunningServer(BIN, ROOT / "models/folio-tiny", "--kv-bytes=200000000"))

    def ask(self, *args):
        return self.server.folio("ask", "--question", "And it came to pass", "--temperature", 1, "--max-new-tokens", 64, *args)

    def test_answers_are_choices(self):
        for seed in range(4):
            result = self.ask("--choice", "yes, it did", "--choice", "no", "--seed", seed)
            self.assertIn(result.stdout.strip(), ("yes, it did", "no"), result.stderr)

    def test_answers_match_an_expression(self):
        for seed in range(4):
            result = self.ask("--regex", r"[A-Z][a-z]{2,8} (said|went) [0-9]{1,3}\.", "--seed", seed)
            self.assertRegex(result.stdout.strip(), re.compile(r"\A[A-Z][a-z]{2,8} (said|went) [0-9]{1,3}\.\Z"))

    def test_evidence_and_log_probabilities_come_with_them(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write((ROOT / "models/texts/ezekiel.txt").read_text()[:20000])
            file.flush()
            result = self.server.folio("--json", "ask", "--document", file.name, "--question", "Who came?", "--choice", "the LORD",
                                       "--choice", "the king", "--strategy", "long_heads", "--evidence", 2, "--logprobs", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        deltas = [event["delta"] for event in events if "delta" in event]
        self.assertIn("".join(delta.get("text", "") for delta in deltas), ("the LORD", "the king"))
        self.assertTrue(all(len(delta["logprobs"]) == len(delta["token_ids"]) for delta in deltas))
        self.assertTrue(any("evidence" in event for event in events))

    def test_sampled_answers_are_valid_under_their_schemas(self):
        for name, schema in SCHEMAS.items():
            answers = answers_of(self.server, schema, 12, seed=1)
            self.assertEqual(len(answers), 12, name)
            self.assertEqual(invalid(answers, schema), [], name)

    def test_what_cannot_be_held_is_refused_by_keyword(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, file)
            file.flush()
            result = self.ask("--json-schema", file.name)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("constraint.json_schema", result.stderr)
        self.assertIn("'not'", result.stderr)
        self.assertIn("/properties/a", result.stderr)

    def test_a_hostile_expression_is_refused_and_the_server_goes_on(self):
        result = self.ask("--regex", r"(\w+ ?){1,100}")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("ambiguous", result.stderr)
        self.assertEqual(self.ask("--choice", "fine").stdout.strip(), "fine")


if __name__ == "__main__":
    unittest.main()
