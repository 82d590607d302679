"""./dev bench --commits: turns, ratios, what counts as slower, and what cannot be built."""
import contextlib
import io
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import bench_fakes

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools")]
import bench_commits  # noqa: E402
import interleaved  # noqa: E402

FLAGS = ["--strategies=full,long_heads", "--depths=0", "--prefill_tokens=0"]


class Commits(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-commits-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.log = self.directory / "log"

    def program(self, name, decode):
        return bench_fakes.folio_bench(self.directory / name / "folio-bench", decode=decode, log=self.log)

    def compared(self, a, b, least=0.99):
        with contextlib.redirect_stdout(io.StringIO()):
            return bench_commits.compare([self.program("a", a), self.program("b", b)], FLAGS, 3, least)

    def test_programs_take_turns(self):
        self.compared(10.0, 10.0)
        self.assertEqual([line.split()[0] for line in self.log.read_text().splitlines()], ["a", "b"] * 3)

    def test_ratios_are_those_of_the_second_to_the_first(self):
        lines, slower = self.compared(10.0, 12.0)
        self.assertEqual(slower, [])
        self.assertEqual(len(lines), 4)  # the heading, two strategies, all of them
        self.assertTrue(all(line.endswith("1.200 [1.200..1.200]") for line in lines[1:]))

    def test_what_is_below_the_least_is_slower(self):
        self.assertEqual(self.compared(10.0, 9.95)[1], [])
        _, slower = self.compared(10.0, 9.85)
        self.assertEqual(len(slower), 3)
        self.assertIn("decode of full at 0: every ratio is below 0.99, the best is 0.985", slower)
        self.assertEqual(self.compared(10.0, 9.85, least=0.9)[1], [])

    def test_a_program_that_fails_is_no_figure(self):
        broken = bench_fakes.write_program(self.directory / "c" / "folio-bench", "sys.exit(3)")
        with self.assertRaises(interleaved.BenchFailed):
            bench_commits.compare([broken, broken], FLAGS, 3, 0.99)

    def test_a_commit_is_built_once_in_a_tree_of_its_own(self):
        repository = self.directory / "repository"
        bench_fakes.folio_bench(repository / "program", decode=5.0)
        (repository / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(fake NONE)\n"
            "file(READ ${CMAKE_SOURCE_DIR}/build/deps/archive fetched)\nadd_custom_target(folio-bench\n"
            "  COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_SOURCE_DIR}/program ${CMAKE_BINARY_DIR}/bin/folio-bench)\n")
        git = ["git", "-C", repository, "-c", "user.name=a", "-c", "user.email=a@example.com"]
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "One"]):
            subprocess.run([*git, *command], check=True)
        (repository / "program").write_text("changed since")
        (repository / "build" / "deps").mkdir(parents=True)
        (repository / "build" / "deps" / "archive").write_text("fetched before")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            first, again = (bench_commits.build("HEAD", repository) for _ in range(2))
        self.assertEqual((first, said.getvalue().count("building")), (again, 1))
        self.assertEqual(interleaved.folio_bench(first, FLAGS)[1][0]["decode_tokens_per_s"], 5.0)

    def test_what_is_measured_is_passed_on(self):
        programs = {"A": self.program("a", 10.0), "B": self.program("b", 10.0)}
        with unittest.mock.patch.object(bench_commits, "build", programs.get), contextlib.redirect_stdout(io.StringIO()):
            status = bench_commits.main(["A", "B", "--rounds=3", "--depths=7", "--weight_dtype=int4", "--kv_dtype=int8"])
        self.assertEqual(status, 0)
        for line in self.log.read_text().splitlines():
            self.assertLessEqual({"--depths=7", "--weight_dtype=int4", "--kv_dtype=int8", "--rounds=1"}, set(line.split()))
            self.assertNotIn("--streams", line)  # an older commit may not know it

    def test_batches_are_measured_where_they_are_wanted(self):
        programs = {"A": self.program("a", 10.0), "B": self.program("b", 10.0)}
        with unittest.mock.patch.object(bench_commits, "build", programs.get), contextlib.redirect_stdout(io.StringIO()):
            bench_commits.main(["A", "B", "--rounds=3", "--streams=8", "--decode_tokens=40"])
        for line in self.log.read_text().splitlines():
            self.assertLessEqual({"--streams=8", "--decode_tokens=40"}, set(line.split()))

    def test_a_commit_that_is_not_there_is_refused(self):
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            self.assertEqual(bench_commits.main(["no-such-commit", "HEAD"]), 2)
        self.assertIn("no-such-commit is no commit of this clone", out.getvalue())


if __name__ == "__main__":
    unittest.main()
