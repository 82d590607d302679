"""tools/bench_compare.py: verdicts, exit status, and what it refuses; the results in docs/benchmarks can be read. And how
tools/bench.py names a processor in them."""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import bench  # noqa: E402
import bench_compare  # noqa: E402


def record(metrics, depth=0, **changes):
    return {"schema": 1, "commit": "abc", "changed": False, "date": "2026-01-01", "machine": {"cpu": "X", "cpus": 2},
            "build": {}, "command": "", "run": {}, "note": "",
            "results": [{"case": {"strategy": "full", "depth": depth}, "metrics": metrics}], **changes}


class BenchCompare(unittest.TestCase):
    def run_on(self, a, b, *flags):
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / name for name in ("a.json", "b.json")]
            for path, content in zip(paths, (a, b)):
                path.write_text(content if isinstance(content, str) else json.dumps(content))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = bench_compare.main([*map(str, paths), *flags])
        return code, out.getvalue()

    def test_a_share_that_falls_beyond_the_threshold_is_worse(self):
        code, text = self.run_on(record({"bandwidth_share": 0.9}), record({"bandwidth_share": 0.8}))
        self.assertEqual(code, 1)
        self.assertIn("0.889 worse", text)
        self.assertIn("1 worse by more than 10%", text)

    def test_what_stays_within_the_threshold_is_not(self):
        code, text = self.run_on(record({"bandwidth_share": 0.9}), record({"bandwidth_share": 0.82}))
        self.assertEqual(code, 0)
        self.assertIn("0.911\n", text)
        self.assertEqual(self.run_on(record({"peak_share": 0.9}), record({"peak_share": 0.82}), "--threshold=0.05")[0], 1)

    def test_speeds_are_shown_and_judged_only_if_asked(self):
        a, b = record({"decode_tokens_per_s": 10, "read_gb_per_s": 20}), record({"decode_tokens_per_s": 5, "read_gb_per_s": 10})
        code, text = self.run_on(a, b)
        self.assertEqual(code, 0)
        self.assertIn("0.500\n", text)
        code, text = self.run_on(a, b, "--speeds")
        self.assertEqual(code, 1)
        self.assertIn("1 worse", text)  # the ceiling is the machine's

    def test_less_is_better_of_bytes_and_times(self):
        code, text = self.run_on(record({"peak_rss_bytes": 100}), record({"peak_rss_bytes": 150}), "--speeds")
        self.assertEqual((code, "1.500 worse" in text), (1, True))
        code, text = self.run_on(record({"first_token_ms": 100}), record({"first_token_ms": 50}), "--speeds")
        self.assertEqual((code, "0.500 better" in text), (0, True))

    def test_cases_are_matched_by_all_that_names_them(self):
        code, text = self.run_on(record({"bandwidth_share": 0.9}), record({"bandwidth_share": 0.1}, depth=2048))
        self.assertEqual(code, 2)
        self.assertIn("in common", text)

    def test_other_machines_are_named(self):
        _, text = self.run_on(record({"bandwidth_share": 1}), record({"bandwidth_share": 1}, machine={"cpu": "Y", "cpus": 2}))
        self.assertIn("not the same machine", text)

    def test_files_that_are_no_results_are_refused(self):
        good = record({"bandwidth_share": 1})
        twice = record({"bandwidth_share": 1})
        twice["results"] *= 2
        no_machine = {key: value for key, value in good.items() if key != "machine"}
        for bad in ("", "[]", {}, {"schema": 2, "results": []}, twice, no_machine, record({"bandwidth_share": "much"})):
            with self.subTest(bad=bad):
                self.assertEqual(self.run_on(good, bad)[0], 2)

    def test_the_committed_results_can_be_read(self):
        files = sorted((ROOT / "docs/benchmarks").glob("*.json"))
        self.assertGreater(len(files), 0)
        for path in files:
            content, cases = bench_compare.load(path)
            self.assertLessEqual({"commit", "date", "machine", "build", "command", "run", "note"}, set(content), path)
            self.assertIn(content["commit"], path.name)
            self.assertGreater(len(cases), 0)


class CpuName(unittest.TestCase):
    def test_processors_of_one_name_are_told_apart(self):
        zen5 = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n"
        self.assertEqual(bench.cpu_name(zen5), "AMD EPYC (family 26, model 2)")

    def test_a_name_alone_and_none_at_all(self):
        self.assertEqual(bench.cpu_name("model name\t: Virtual CPU\n"), "Virtual CPU")
        self.assertEqual(bench.cpu_name("CPU implementer\t: 0x41\n"), "unknown")


if __name__ == "__main__":
    unittest.main()
