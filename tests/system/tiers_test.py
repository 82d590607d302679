"""A server whose cache does not fit into memory answers like one whose cache does (the short form of ./dev tiers larger)."""
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "tiers")]
import larger  # noqa: E402
import synthetic  # noqa: E402
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
TOKENS, MEMORY_BYTES = 6_000, 8 * larger.MIB


class TiersTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-tiers-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def test_answers_are_those_from_memory_and_nothing_is_left_on_disk(self):
        with larger.Documents(BIN, self.directory, TOKENS, MEMORY_BYTES) as documents:
            self.assertEqual(documents.faults_of(larger.CHOOSING, finds_key=True), [])
            for strategy in larger.READING_ALL:
                self.assertEqual(documents.faults_of(strategy, finds_key=False), [])
            self.assertEqual(documents.resident_faults(), [])
            self.assertGreater(documents.disk_bytes(), 2 * MEMORY_BYTES)
            metrics = documents.servers["disk"].metrics()
            self.assertGreater(metrics['folio_kv_slices_total{result="miss"}'], 0)
            info = documents.servers["disk"].folio("--json", "info")
            self.assertIn('"tier":"disk"', info.stdout)
            server = documents.servers["disk"]
            self.assertEqual(server.folio("docs", "delete", "document").returncode, 0)
            # Metrics are those of the engine's last turn, which may not have ended when a call has.
            wait_for(lambda: documents.disk_bytes() == 0, "an empty cache on disk")
            self.assertEqual(server.stop(), 0)
            self.assertFalse((self.directory / "kv" / "pages").exists())

    def test_synthetic_caches_are_read_from_disk_as_they_are_missed(self):
        for strategy in ("long_heads", "full"):
            with self.subTest(strategy):
                directory = self.directory / strategy
                directory.mkdir()
                disk = synthetic.on_disk(BIN, directory, TOKENS, MEMORY_BYTES, f"--strategy={strategy}", model=larger.MODEL)
                self.assertGreater(disk["misses"], 0)
                self.assertEqual(disk["missed_bytes"], disk["misses"] * disk["slice_bytes"])
                self.assertGreater(disk["stored_bytes"], 2 * MEMORY_BYTES)

    def assert_refused(self, message, *flags):
        server = RunningServer(BIN, larger.MODEL, *flags)
        self.addCleanup(server.directory.cleanup)
        with self.assertRaisesRegex(RuntimeError, message):
            server.__enter__()

    def test_a_directory_is_of_one_server(self):
        flags = [f"--kv-bytes={MEMORY_BYTES}", f"--kv-dir={self.directory / 'kv'}"]
        with RunningServer(BIN, larger.MODEL, *flags):
            self.assert_refused("in use by another process", *flags)

    def test_memory_that_holds_no_step_is_refused_with_the_arithmetic(self):
        self.assert_refused("holds not even one step.*raise --kv-bytes or lower --step-tokens", "--kv-bytes=1MiB",
                            f"--kv-dir={self.directory / 'kv'}")


if __name__ == "__main__":
    unittest.main()
