"""run.sh of the GPU bundle with programs that only pretend: stages, time limits, lines, the archive, and what happens when a
program crashes, hangs or finds no device. tools/gpu_report.py reads what comes out."""
import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGES = ["smoke", "tests", "shape", "speed", "tiers", "profile", "sanitizer", "server", "transformers"]
NO_GPU = "there is no CUDA device 0, of 0: no driver"

# What the programs pretend: `plan` says, by name of a test or measurement, how it ends.
CUDA_TESTS = r"""
import json, os, signal, sys, time
plan = json.load(open(os.environ["PRETEND"]))
if plan.get("gpu") is False:
    print("SKIPPED: %s"); sys.exit(77)
words = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
print("on a pretended device")
if "gtest_list_tests" in words:
    if "ModelParity" in words["gtest_filter"]:
        print("Shapes/ModelParity.\n  llama_2_7b_full  # GetParam() = 3")
    else:
        print("Shapes/VerbParity.\n  Norms\n  Products\nAnswers.\n  Crash\n  Last\n  Late")
    sys.exit(0)
alone = os.environ.get("FOLIO_CUDA_SYNC") == "1"
code = 0
for name in words["gtest_filter"].split(":"):
    print("[ RUN      ]", name, flush=True)
    end = plan.get(name + " alone" if alone else name, "ok")
    if end == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    while end == "hang":
        open(os.environ["PRETEND"] + ".pid", "w").write(str(os.getpid()))
        signal.pause()
    if end == "fail":
        print("parity.cc:7: relative error 0.5\n[  FAILED  ] %%s, where GetParam() = 3 (12 ms)" %% name); code = 1
    else:
        print("[       OK ]", name, "(5 ms)")
print("[  FAILED  ] in the summary")
sys.exit(code)
""" % NO_GPU
BENCH = r"""
import json, os, signal, sys
plan = json.load(open(os.environ["PRETEND"]))
words = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
names = ["ceilings/copy", "ceilings/product", "decode/full/1x4096", "decode/full/32x4096", "prefill/full/4096"]
names = [n for p in words.get("only", "").split(",") for n in names if n == p or n.startswith(p + "/")]
if "list" in words:
    print("\n".join(names)); sys.exit(0)
if plan.get("gpu") is False:
    sys.exit("folio-device-bench: %s")
sync = os.environ.get("FOLIO_CUDA_SYNC") == "1"
for name in ["start", *names]:
    end = plan.get(name, "ok")
    if end == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if end == "device":
        error = "CUDA: an illegal address" + (", in Attend" if sync else "")
        print(json.dumps({"name": name, "status": "failed", "error": error}), flush=True); sys.exit(3)
    print(json.dumps({"name": name, "status": "ok", "tokens_per_s": 100.0, "of_copy": 0.9, "bytes_per_s": 4e12}), flush=True)
""" % NO_GPU
OTHER = 'import sys\nsys.exit(0 if "--help" in sys.argv else "%s")' % NO_GPU
SMI = 'print("Pretended GPU, 580.1, 141 GiB, 0 GiB, 345 MHz, 1980 MHz, 3201 MHz, 3201 MHz, 30, 70 W, 700 W, none")'


def program(path, text):
    path.write_text(f"#!{sys.executable} -BS\n{text}\n")
    path.chmod(0o755)


class GpuRun(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.bundle = pathlib.Path(directory.name)
        (self.bundle / "bin").mkdir()
        (self.bundle / "path").mkdir()
        shutil.copytree(ROOT / "tools/gpu_run", self.bundle / "gpu_run", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tools/gpu_run/run.sh", self.bundle)
        shutil.copy(ROOT / "tools/running_server.py", self.bundle / "gpu_run")
        (self.bundle / "transformers_bench.py").write_text("raise SystemExit('never')")
        (self.bundle / "filter").write_text("*\n")
        (self.bundle / "commit").write_text("abc\n")
        for name, text in {"cuda_tests": CUDA_TESTS, "folio-device-bench": BENCH, "folio": OTHER, "folio-server": OTHER,
                           "folio-loadtest": OTHER}.items():
            program(self.bundle / "bin" / name, text)
        self.out = self.bundle / "out"
        self.plan({})

    def plan(self, plan):
        (self.bundle / "plan.json").write_text(json.dumps(plan))

    def start(self, *arguments):
        path = f"{self.bundle / 'path'}:{os.environ['PATH']}"
        return subprocess.Popen([self.bundle / "run.sh", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env={**os.environ, "PATH": path, "OUT": str(self.out), "PRETEND": str(self.bundle / "plan.json")})

    def run_sh(self, *arguments):
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=100)
        return process.returncode, output

    def lines(self):
        found = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        for line in found:
            self.assertLessEqual({"stage", "name", "status", "commit", "at"}, set(line))
            self.assertIn(line["status"], ("ok", "failed", "timeout", "skipped", "no gpu"))
        return found

    def statuses(self, stage):
        return {line["name"]: line["status"] for line in self.lines() if line["stage"] == stage}

    def archived(self):
        with tarfile.open(self.out / "folio-gpu-results.tar.gz") as tar:
            names = tar.getnames()
            self.assertEqual(tar.extractfile("results.jsonl").read(), (self.out / "results.jsonl").read_bytes())
        return names

    def test_lists_stages_and_refuses_others(self):
        code, output = self.run_sh("--list")
        self.assertEqual(code, 0)
        self.assertEqual([line.split()[0] for line in output.splitlines()], STAGES)
        code, output = self.run_sh("smoke", "tset")
        self.assertEqual(code, 2)
        self.assertIn("there is no stage 'tset'", output)
        self.assertFalse(self.out.exists())

    def test_without_a_gpu_every_stage_says_so(self):
        self.plan({"gpu": False})
        code, output = self.run_sh()
        self.assertEqual(code, 77, output)
        of_stages = {line["name"]: line for line in self.lines() if line["name"] == line["stage"]}
        self.assertEqual(list(of_stages), STAGES)
        for stage in STAGES[:-1]:
            self.assertEqual(of_stages[stage]["status"], "no gpu", output)
        self.assertIn(of_stages["transformers"]["status"], ("no gpu", "skipped"))
        self.assertEqual(self.statuses("smoke")["start/folio-server"], "ok")
        self.assertIn("logs/tests-list.log", self.archived())
        report = subprocess.run([sys.executable, "-B", ROOT / "tools/gpu_report.py", self.out / "results.jsonl"],
                                capture_output=True, text=True)
        self.assertEqual(report.returncode, 0, report.stderr)

    def test_runs_the_stages_asked_for_in_their_order(self):
        program(self.bundle / "path/nvidia-smi", SMI)
        code, output = self.run_sh("smoke", "shape")
        self.assertEqual(code, 0, output)
        self.assertEqual(list(dict.fromkeys(line["stage"] for line in self.lines())), ["run.sh", "smoke", "shape"])
        smoke = {line["name"]: line for line in self.lines() if line["stage"] == "smoke"}
        self.assertEqual(smoke["nvidia-smi"]["clocks.max.sm"], "1980 MHz")
        self.assertEqual(smoke["decode/full/1x4096"]["tokens_per_s"], 100)
        self.assertEqual(self.statuses("shape"), {"Shapes/ModelParity.llama_2_7b_full": "ok", "shape": "ok"})

    def test_a_crash_costs_one_test_and_is_looked_at_alone(self):
        self.plan({"Answers.Crash": "crash", "Shapes/VerbParity.Norms": "fail", "Shapes/VerbParity.Norms alone": "fail"})
        code, output = self.run_sh("tests")
        self.assertEqual(code, 1, output)
        found = self.statuses("tests")
        self.assertEqual(found["Shapes/VerbParity.Norms"], "failed")
        self.assertEqual(found["Shapes/VerbParity.Products"], "ok")
        self.assertEqual(found["Answers.Crash"], "failed")
        self.assertEqual(found["Shapes/VerbParity.Norms (alone, FOLIO_CUDA_SYNC=1)"], "failed")
        self.assertEqual(found["Answers.Crash (alone, FOLIO_CUDA_SYNC=1)"], "ok")
        self.assertEqual(found["Answers.Last (alone, FOLIO_CUDA_SYNC=1)"], "ok")  # had not run: Crash took it along
        errors = {line["name"]: line.get("error", "") for line in self.lines()}
        self.assertIn("relative error 0.5", errors["Shapes/VerbParity.Norms"])

    def test_what_succeeded_is_not_done_again_unless_asked(self):
        self.plan({"Shapes/VerbParity.Norms": "fail", "Shapes/VerbParity.Norms alone": "fail"})
        self.run_sh("tests")
        self.plan({})
        self.assertEqual(self.run_sh("tests")[0], 0)
        self.assertEqual(self.run_sh("tests", "--again")[0], 0)
        (self.bundle / "commit").write_text("def\n")
        self.run_sh("tests")
        times = collections.Counter(line["name"] for line in self.lines())
        self.assertEqual(times["Shapes/VerbParity.Norms"], 4)
        self.assertEqual(times["Shapes/VerbParity.Products"], 3)

    def test_what_hangs_is_ended_and_the_rest_of_the_time_is_said(self):
        self.plan({"Answers.Crash": "hang"})
        start = time.monotonic()
        code, output = self.run_sh("tests", "speed", "--minutes=0.35")  # of which 15 s are the archive's
        self.assertLess(time.monotonic() - start, 60)
        self.assertEqual(code, 1, output)
        self.assertEqual(self.statuses("tests")["Answers.Crash"], "timeout")
        self.assertEqual(self.statuses("tests")["Shapes/VerbParity.Norms"], "ok")
        self.assertEqual(self.statuses("tests")["tests"], "timeout")
        self.assertEqual(self.statuses("speed")["speed"], "timeout")
        self.assertFalse(pathlib.Path("/proc", (self.bundle / "plan.json.pid").read_text()).exists())
        self.assertIn("results.jsonl", self.archived())

    def wait_for_the_hanging_test(self, process):
        while not (self.bundle / "plan.json.pid").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.05)

    def test_told_to_end_it_leaves_an_archive(self):
        self.plan({"Answers.Crash": "hang"})
        process = self.start("tests")
        self.wait_for_the_hanging_test(process)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, output)
        self.archived()

    def test_killed_it_leaves_its_lines(self):
        self.plan({"Answers.Late": "hang"})
        process = self.start("tests")
        self.wait_for_the_hanging_test(process)
        while "Answers.Last" not in (self.out / "results.jsonl").read_text():
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        process.kill()
        process.communicate()
        os.kill(int((self.bundle / "plan.json.pid").read_text()), signal.SIGKILL)
        self.assertEqual(self.statuses("tests")["Answers.Last"], "ok")

    def test_a_device_that_fails_costs_one_measurement(self):
        self.plan({"decode/full/32x4096": "device"})
        code, output = self.run_sh("speed")
        self.assertEqual(code, 1, output)
        found = self.statuses("speed")
        self.assertEqual(found["decode/full/32x4096"], "failed")
        self.assertEqual(found["prefill/full/4096"], "ok")
        self.assertEqual(found["decode/full/1x4096 without PDL"], "ok")
        errors = {line["name"]: line.get("error", "") for line in self.lines()}
        self.assertIn("in Attend", errors["decode/full/32x4096 (FOLIO_CUDA_SYNC=1)"])

    def test_a_measurement_that_crashes_is_named(self):
        self.plan({"decode/full/32x4096": "crash"})
        self.run_sh("speed")
        self.assertEqual(self.statuses("speed")["decode/full/32x4096"], "failed")
        self.assertEqual(self.statuses("speed")["prefill/full/4096"], "ok")

    def test_the_report_shows_figures_goals_and_failures(self):
        program(self.bundle / "path/nvidia-smi", SMI)
        self.plan({"decode/full/32x4096": "device"})
        self.run_sh("smoke", "speed", "tests")
        with open(self.out / "results.jsonl", "a") as file:
            file.write('{"stage": "speed", "name": "cut o')
        report = subprocess.run([sys.executable, "-B", ROOT / "tools/gpu_report.py", self.out / "results.jsonl"],
                                capture_output=True, text=True)
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("Pretended GPU, driver 580.1; commit abc", report.stdout)
        self.assertIn("| decode, 1 stream at 4k, full: of a copy's rate | 0.85 | 0.9 | met |", report.stdout)
        self.assertIn("| decode/full/1x4096 | 100 |", report.stdout)
        self.assertIn("an illegal address", report.stdout)


if __name__ == "__main__":
    unittest.main()
