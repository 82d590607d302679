"""Stages that say whether the backend is right: its tests, alone and under NVIDIA's checkers."""
import collections
import concurrent.futures
import os
import re
import shutil

ENDED = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:,.*)? \((\d+) ms\)")
STATUS = {"OK": "ok", "FAILED": "failed", "SKIPPED": "skipped"}
BEGUN = re.compile(r"\[ RUN +\] (\S+)")
SHARD_TESTS = 12  # at most, in one process
MOST_ALONE = 12   # failed tests that are run once more
SMALL = "*VerbParity*:*AttentionParity*page16*:*AttentionParity*128_mha*"


class TestRun:
    """One process of cuda_tests: a line per test, when it ends."""

    def __init__(self, stage, names, label, suffix="", env=None):
        self.stage, self.suffix, self.begun, self.ended, self.said = stage, suffix, None, {}, []
        json_path = stage.log(label).with_suffix(".json")
        self.outcome = stage.run(
            label, [stage.bin / "cuda_tests", f"--gtest_filter={':'.join(names)}", f"--gtest_output=json:{json_path}"],
            quiet=150,
            env={"FOLIO_TEST_DATA": str(stage.bundle / "tests"), **(env or {})}, on_line=self.on_line)
        # Where it crashed, or was stopped.
        if self.begun and self.begun not in self.ended:
            self.end(self.begun, "timeout" if self.outcome.code is None else "failed",
                     error=f"ended the process: {self.outcome.values().get('error', '')}")

    def on_line(self, line):
        if begun := BEGUN.match(line):
            self.begun, self.said = begun[1], []
        elif ended := ENDED.match(line):
            values = {} if ended[1] == "OK" else {"error": "".join(self.said)[:1500]}
            self.end(ended[2], STATUS[ended[1]], seconds=int(ended[3]) / 1000, **values)
        else:
            self.said.append(line)

    def end(self, name, status, **values):
        self.ended[name] = status
        self.stage.record(name + self.suffix, status, **values)


def listed(stage, filter):
    """Names of the tests of a filter; none without a device, and a line says so."""
    outcome = stage.run("list", [stage.bin / "cuda_tests", "--gtest_list_tests", f"--gtest_filter={filter}"], seconds=60)
    names, suite = [], None
    for line in outcome.text().splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith("  ") and suite:
            names.append(suite + word.strip())
        elif re.fullmatch(r"[\w/]+\.", word):
            suite = word
    if not names:
        status = outcome.status()
        stage.record("cuda_tests", "failed" if status == "ok" else status,
                     **{"error": f"no test matches {filter}", **outcome.values()})
    return names


def shards(names):
    """Tests of one suite together, a dozen at a time."""
    suites = collections.defaultdict(list)
    for name in names:
        suites[name.split(".")[0]].append(name)
    return [group[n:n + SHARD_TESTS] for group in suites.values() for n in range(0, len(group), SHARD_TESTS)]


def run_all(stage, names):
    """All tests, several processes at a time; what failed once more, alone and with every launch waited for: that tells a
    fault from its consequences, and names verb and kernel."""
    groups = shards(names)
    with concurrent.futures.ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 2) // 2))) as pool:
        runs = list(pool.map(lambda n: TestRun(stage, groups[n], f"shard{n}"), range(len(groups))))
    ended = {name: status for run in runs for name, status in run.ended.items()}
    suspects = [name for name in names if ended.get(name) not in ("ok", "skipped")]
    for name in suspects[:MOST_ALONE]:
        TestRun(stage, [name], f"alone-{name}", suffix=" (alone, FOLIO_CUDA_SYNC=1)", env={"FOLIO_CUDA_SYNC": "1"})
    missing = [name for name in suspects if name not in ended]
    if missing:
        stage.record("not run", "failed", error=f"{len(missing)} tests: {' '.join(missing[:5])} ...")


def tests(stage):
    """cuda_tests: verbs against the CPU backend, references, whole answers; each failed test once more, alone"""
    names = listed(stage, (stage.bundle / "filter").read_text().strip())
    done = stage.results.done("tests")
    run_all(stage, [name for name in names if name not in done])


def shape(stage):
    """layers of a Llama-2-7B shape, a prompt of thousands of tokens: logits and chosen chunks against the CPU backend"""
    names = listed(stage, "*ModelParity*7b*")
    done = stage.results.done("shape")
    for name in names:
        if name not in done:
            TestRun(stage, [name], name)


def sanitizer(stage):
    """compute-sanitizer: memcheck, racecheck and synccheck on small shapes"""
    program = shutil.which("compute-sanitizer")
    tools = ["memcheck", "racecheck", "synccheck"]
    if not program and stage.run("probe", [stage.bin / "cuda_tests", "--gtest_list_tests"]).status() == "no gpu":
        return stage.record("sanitizer", "no gpu", error="there is no CUDA device")
    for n, tool in enumerate(tools):
        if not program:
            stage.record(tool, "skipped", error="there is no compute-sanitizer here")
        elif tool not in stage.results.done("sanitizer"):
            stage.check(tool, [program, "--tool", tool, "--error-exitcode", "99", stage.bin / "cuda_tests",
                               f"--gtest_filter={SMALL}"],
                        seconds=stage.left() / (len(tools) - n),
                        env={"FOLIO_TEST_DATA": str(stage.bundle / "tests")})
    return None
