"""Documents outlive their server: stopped, killed at random moments, and started again (the short forms of ./dev tiers restart
and crash)."""
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "tiers")]
import crash  # noqa: E402
import stored  # noqa: E402
import unfinished  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
CRASHES, SMALL = 4, 10


class StoredDocumentsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-stored-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.text = self.directory / "text.txt"

    def upload(self, server, document, num_chars, *flags):
        self.text.write_text(stored.words(len(document), num_chars))
        stored.upload(server, self.text, document, *flags)

    def test_what_was_saved_answers_after_a_kill_as_before(self):
        store = stored.Store(BIN, self.directory)
        with store.server() as server:
            for number in range(SMALL):
                self.upload(server, f"small-{number}", 500)
            self.upload(server, "large", 60_000, "--name", "The large one")
            documents = [stored.save(server, document["document_id"]) for document in stored.listed(server)]
            before, _ = stored.ask(server, "large")
            server.process.kill()
            server.process.wait()
        with store.server() as server:
            listed = {document["document_id"]: document for document in stored.listed(server)}
            self.assertEqual(len(listed), SMALL + 1)
            for document in documents:
                for field in ("display_name", "size_bytes", "token_count", "create_time", "strategy", "stored_bytes"):
                    self.assertEqual(listed[document["document_id"]][field], document[field])
            after, completed = stored.ask(server, "large")
            self.assertEqual(after, before)
            self.assertEqual(completed["usage"]["cached_tokens"], listed["large"]["token_count"])
            metrics = server.metrics()
            self.assertEqual(metrics["folio_stored_documents"], SMALL + 1)
            self.assertEqual(metrics["folio_document_loads_total"], 1)
            self.assertIn("on disk", server.folio("docs", "show", "large").stdout)

    def test_labels_outlive_a_kill_and_documents_expire(self):
        store = stored.Store(BIN, self.directory)
        with store.server() as server:
            for document, ttl in (("brief", "1s"), ("long", "24h")):
                self.upload(server, document, 500, "--ttl", ttl, "--label", f"kept={document}", "--pin")
                stored.save(server, document)
            stored.check(server.folio("docs", "update", "long", "--label", "year=1999", "--unpin"))
            server.process.kill()
            server.process.wait()
        with store.server() as server:
            listed = {document["document_id"]: document for document in stored.listed(server)}
            self.assertEqual(listed["long"]["labels"], {"kept": "long", "year": "1999"})
            self.assertEqual(listed["long"]["ttl"], "86400s")
            self.assertTrue(listed["brief"]["pinned"], "it would have expired")
            stored.check(server.folio("docs", "update", "brief", "--unpin"))
            while "brief" in {document["document_id"] for document in stored.listed(server)}:
                pass
            self.assertEqual(server.stop(), 0)
            self.assertIn("TTL is over", server.log())
        self.assertFalse([path for path in store.files()["documents"] if "brief" in str(path)])

    def test_evidence_of_a_document_from_disk_has_its_places_in_the_text(self):
        store = stored.Store(BIN, self.directory)
        evidence = []
        for _ in range(2):
            with store.server() as server:
                if not stored.listed(server):
                    self.upload(server, "book", 30_000)
                    stored.save(server, "book")
                evidence.append(self.evidence_of(server, "book"))
                self.assertEqual(server.stop(), 0)
        self.assertIn("byte", str(evidence[0]))
        self.assertEqual(evidence[0], evidence[1])

    def evidence_of(self, server, document):
        asked = stored.check(server.folio("--json", "ask", "--document", document, "--question", "What?", "--strategy",
                                          "long_heads", "--evidence", 2, "--max-new-tokens", 4))
        events = [json.loads(line) for line in asked.stdout.splitlines()]
        return next(event["evidence"] for event in events if "evidence" in event)

    def test_an_unfinished_upload_goes_on_after_a_kill(self):
        store = stored.Store(BIN, self.directory)
        text = stored.words(5, 40_000).encode()
        with store.server() as server:
            self.text.write_bytes(text)
            stored.upload(server, self.text, "in-one-go", "--strategy", "long_heads")
            before, _ = stored.ask(server, "in-one-go")
            evidence = self.evidence_of(server, "in-one-go")
            begun = unfinished.begin(server, "in-parts", text, 25_000)
            server.process.kill()
            server.process.wait()
        with store.server() as server:
            left = unfinished.state(server, "in-parts")
            self.assertEqual(left["state"], "STATE_UPLOADING")
            self.assertGreaterEqual(int(left["size_bytes"]), int(begun["saved_size_bytes"]))
            self.assertLess(int(left["size_bytes"]), 25_000)  # of a word that may go on no tokens are known
            self.assertGreater(int(left["prefilled_tokens"]), 0)
            self.assertEqual(unfinished.go_on(server, "in-parts", text), int(left["size_bytes"]))
            after, completed = stored.ask(server, "in-parts")
            self.assertEqual(after, before)
            self.assertEqual(self.evidence_of(server, "in-parts"), evidence)
            self.assertLess(server.metrics()['folio_prompt_tokens_total{source="computed"}'], int(completed["usage"]["prompt_tokens"]))

    def test_killed_at_random_moments(self):
        crashes = crash.run(BIN, self.directory, CRASHES)
        self.assertEqual(crashes.faults, [])
        self.assertGreater(crashes.num_checked, 0)
        self.assertGreater(crashes.num_resumed, 0)

    def test_a_directory_that_is_no_store_is_refused(self):
        store = stored.Store(BIN, self.directory)
        (store.directory / "store").mkdir(parents=True)
        (store.directory / "store" / "thesis.doc").write_text("years of work")
        server = store.server()
        self.addCleanup(server.directory.cleanup)
        with self.assertRaisesRegex(RuntimeError, "store"):
            server.__enter__()
        self.assertEqual((store.directory / "store" / "thesis.doc").read_text(), "years of work")


if __name__ == "__main__":
    unittest.main()
