"""./dev bench --quota: turns inside and outside of the group, goals, and groups that cannot be had."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import bench_fakes

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]
import bench_quota  # noqa: E402


def row(speed, stall_ms):
    return {"decode_tokens_per_s": speed, "decode_mean_tokens_per_s": speed, "decode_longest_ms": 1000 / speed + stall_ms}


class Quota(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-quota-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_main(self, *arguments):
        """(exit status, what it printed, what it said of an error)"""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = bench_quota.main([f"--bin={self.directory}", *arguments])
        return status, out.getvalue(), err.getvalue()

    def test_goals(self):
        _, reached = bench_quota.report([(row(10, 1), row(7.5, 30))] * 3, 150)
        self.assertTrue(reached)
        lines, reached = bench_quota.report([(row(10, 1), row(6.9, 30))] * 3, 150)
        self.assertFalse(reached)
        self.assertIn("0.69 [0.69..0.69]", lines[0])
        lines, reached = bench_quota.report([(row(10, 1), row(9, 30)), (row(10, 1), row(9, 101)), (row(10, 1), row(9, 3))], 150)
        self.assertFalse(reached)
        self.assertIn("median: 101 ms, without a quota 1 ms", lines[1])

    def test_a_group_that_cannot_be_made(self):
        with self.assertRaisesRegex(bench_quota.NoQuota, "cannot be made: No such file"):
            with bench_quota.group_of_quota(150, self.directory / "nothing"):
                self.fail("there is no such group")

    def test_programs_take_turns_in_the_group_and_outside(self):
        processes = self.directory / "cgroup.procs"
        log = self.directory / "log"
        bench_fakes.folio_bench(self.directory / "folio-bench", decode=20.0, log=log)
        group = contextlib.nullcontext(processes)
        with unittest.mock.patch.object(bench_quota, "group_of_quota", lambda percent: group):
            status, out, _ = self.run_main("150", "--rounds=3")
        self.assertEqual(status, 0)
        self.assertIn("speed with a quota of 150 %: 1.00 [1.00..1.00]", out)
        self.assertGreater(int(processes.read_text()), 1)
        self.assertEqual(len(log.read_text().splitlines()), 6)

    def test_what_fails_is_told(self):
        with unittest.mock.patch.object(bench_quota, "group_of_quota", side_effect=bench_quota.NoQuota("not permitted")):
            status, _, err = self.run_main()
        self.assertEqual((status, err), (2, "bench: not permitted\n"))


if __name__ == "__main__":
    unittest.main()
