#!/usr/bin/env python3
"""Holds the documents to the code: sections of docs/methods.md, links, paths, commands and flags that they name.

FOLIO_BIN_DIR=<folder of the programs> adds the checks of flags against --help.
"""
import functools
import os
import pathlib
import re
import subprocess
import sys
import unittest

import layering_test

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools/against"))
import standing  # noqa: E402

METHODS = ROOT / "docs/methods.md"
CODE = (".h", ".cc", ".cu", ".py", ".proto")
# Programs of ours whose flags documents name, with what makes them list their flags.
EVALUATIONS = ("passkey", "needle", "kv-retrieval", "perplexity", "coverage")
COMMANDS = ["ask", "cancel", "docs", "docs update", "estimate", "info", "plan", "requests", "score", "strategies", "tokenize", "upload",
            *(f"eval {e}" for e in EVALUATIONS)]
PROGRAMS = {"folio": ["--help", *(f"{command} --help" for command in COMMANDS)], "folio-server": ["--help"],
            "folio-loadtest": ["--help"], "folio-bench": ["--helpfull"], "folio-device-bench": ["--helpfull"],
            "folio-make-model": ["--helpfull"], "folio-tokenizer-bench": ["--helpfull"]}
# Flags of other programs.
FOREIGN_FLAGS = {"--build-arg", "--timeout", "--gtest_filter"}


@functools.cache
def files():
    """Every file of the project, as paths below ROOT."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and "build" not in path.relative_to(ROOT).parts]


def documents():
    return [path for path in files() if path.suffix == ".md"]


def name(path):
    return str(path.relative_to(ROOT))


# ---- docs/methods.md ----

def sections(text):
    """{'7': heading, '7.1': heading, ...}: headings, and paragraphs that begin with their number in bold."""
    found = re.findall(r"^(?:#+ |\*\*)(\d+(?:\.\d+)?)\.? (.*)$", text, re.M)
    return dict(found)


def public_methods(proto):
    """Fields of the oneofs of strategies and schemes."""
    fields = []
    for oneof in ("strategy", "scheme"):
        body = re.search(rf"oneof {oneof} {{(.*?)}}", proto, re.S).group(1)
        fields += [field for field in re.findall(r"^\s*\w+ (\w+) = \d+;", body, re.M) if field != "named"]
    return fields


def registered_methods():
    """Names in the strategies' files and in the table of schemes."""
    strategies = [re.findall(r'name\(\) const override { return "(\w+)"', path.read_text())
                  for path in sorted((ROOT / "engine/attention/strategies").glob("*.cc"))]
    schemes = re.findall(r'\.name = "(\w+)"', (ROOT / "engine/attention/position_schemes.cc").read_text())
    return sum(strategies, []), schemes


def plain(text):
    """Text with comments joined across lines."""
    return re.sub(r"\s*\n\s*(?://|#|\*)\s*", " ", text)


def citations(text):
    """Sections of docs/methods.md that a text cites."""
    return re.findall(r"docs/methods\.md, section (\d+(?:\.\d+)?)", plain(text))


def vague_citations(text):
    """Citations of "methods" that do not name the file and a section of it."""
    return re.findall(r"\bmethods[,:]? (?:of )?(?:section \d|eq\. \d|table|\d\.\d)[^)]{0,20}", plain(text))


class Methods(unittest.TestCase):
    def test_every_strategy_and_scheme_has_a_section(self):
        strategies, schemes = registered_methods()
        public = public_methods((ROOT / "proto/folio/v1/common.proto").read_text())
        self.assertGreater(len(strategies), 6)
        self.assertGreater(len(schemes), 9)
        self.assertEqual(set(public), set(strategies + schemes))
        headings = " ".join(sections(METHODS.read_text()).values())
        self.assertEqual([method for method in public if f"(`{method}`)" not in headings], [])

    def test_every_citation_names_a_section(self):
        known = sections(METHODS.read_text())
        cited = [(name(path), section) for path in files() if path.suffix in CODE + (".md",)
                 for section in citations(path.read_text())]
        self.assertGreater(len(cited), 5)
        self.assertEqual([entry for entry in cited if entry[1] not in known], [])
        inside = re.findall(r"\((?:7|9|1)\.\d+\)|(?<=, )\d\.\d+(?=\))", METHODS.read_text())
        self.assertEqual([cite for cite in inside if cite.strip("()") not in known], [])

    def test_code_cites_the_file_and_the_section(self):
        vague = [(name(path), cite) for path in files()
                 if path.suffix in CODE and path.name != "docs_test.py" for cite in vague_citations(path.read_text())]
        self.assertEqual(vague, [])

    def test_the_checks_can_fail(self):
        self.assertEqual(citations("// (docs/methods.md,\n// section 99.1)"), ["99.1"])
        self.assertTrue(vague_citations("// (methods,\n// section 13)"))
        self.assertEqual(sections("## 3 A (`a`)\n**3.1 B.** Text\n"), {"3": "A (`a`)", "3.1": "B.** Text"})


# ---- docs/performance.md ----

class Performance(unittest.TestCase):
    """What tools/against/standing.py prints is what the documents say."""

    def test_the_tables_are_those_of_the_runs(self):
        performance, readme = (ROOT / "docs/performance.md").read_text(), (ROOT / "README.md").read_text()
        self.assertGreater(standing.all_machines().count("\n"), 20)
        self.assertIn(f"\n\n{standing.all_machines()}\n\n", performance)
        self.assertEqual([machine for machine in standing.MACHINES if f" {standing.runs_of(machine)}." not in performance], [])
        self.assertIn(f"\n\n{standing.one_machine(standing.OF_README)}\n\n", readme)
        self.assertEqual([run for run in standing.MACHINES[standing.OF_README] if f"commit {run[-7:]}, {run[:10]}" not in
                          readme.replace("\n", " ")], [])

    def test_a_row_is_that_of_the_newest_run(self):
        older = [(machine, runs) for machine, runs in standing.MACHINES.items() if [run[:10] for run in runs] != sorted(
            (run[:10] for run in runs), reverse=True)]
        self.assertEqual(older, [])


# ---- docs/faults.md ----

NUM_FAULTS = 20


def faults(text):
    """{number of a row: tests that it names}"""
    return {int(number): re.findall(r"`Faults\.(\w+)`", rest) for number, rest in re.findall(r"^\| (\d+) \|(.*)$", text, re.M)}


def fault_tests():
    return [test for path in sorted((ROOT / "tests/faults").glob("*.cc")) for test in re.findall(r"^TEST\(Faults, (\w+)\)", path.read_text(), re.M)]


class Faults(unittest.TestCase):
    def test_every_fault_has_its_tests_and_every_test_its_fault(self):
        named = faults((ROOT / "docs/faults.md").read_text())
        self.assertEqual(list(named), list(range(1, NUM_FAULTS + 1)))
        self.assertEqual([number for number, tests in named.items() if not tests], [])
        self.assertEqual(sorted(sum(named.values(), [])), sorted(fault_tests()))

    def test_the_checks_can_fail(self):
        self.assertEqual(faults("| 1 | a | b | `Faults.One`, `Faults.Two` | c |\n| 2 | a | b | c |\n"), {1: ["One", "Two"], 2: []})


# ---- links and paths ----

def slug(heading):
    """The anchor that hosting sites give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip().replace(" ", "-")


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.S)


def broken_links(path, text):
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        to = (path.parent / target).resolve() if target else path
        if not to.exists():
            broken.append(target)
        elif anchor and to.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", without_code(to.read_text()), re.M)
            if anchor not in map(slug, headings):
                broken.append(f"{target}#{anchor}")
    return broken


def missing_paths(text):
    """Paths in backticks that begin with a folder of the repository and are not there. `a.{h,cc}` is every one of them, NAME
    and CASE stand for anything."""
    folders = "|".join(sorted(p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in ("build",)))
    missing = []
    for path in re.findall(rf"`((?:{folders})/[\w./*{{}},-]*)`", text):
        path = re.sub(r"\b(NAME|CASE)\b", "*", path.rstrip("/"))
        alternatives = [path]
        if braces := re.search(r"{([^}]*)}", path):
            alternatives = [path[:braces.start()] + part + path[braces.end():] for part in braces.group(1).split(",")]
        for each in alternatives:
            if not (any(ROOT.glob(each)) or any(ROOT.glob(each + ".*"))):
                missing.append(each)
    return missing


def layers(text):
    """{folder: folders that it may include} of the table of docs/architecture.md."""
    table = {}
    for folder, included in re.findall(r"^\| `(\w+)` \|([^|]*)\|$", text.split("## 2 ")[1].split("## 3 ")[0], re.M):
        table[folder] = set(table) if "all of the above" in included else set(re.findall(r"`(\w+)`", included))
    return table


class Architecture(unittest.TestCase):
    def test_the_table_of_layers_is_the_one_that_is_checked(self):
        self.assertEqual(layers((ROOT / "docs/architecture.md").read_text()), layering_test.ENGINE)


class Links(unittest.TestCase):
    def test_relative_links_lead_somewhere(self):
        self.assertGreater(len(documents()), 10)
        self.assertEqual([(name(path), link) for path in documents() for link in broken_links(path, path.read_text())], [])

    def test_paths_exist(self):
        self.assertEqual([(name(path), missing) for path in documents() for missing in missing_paths(path.read_text())], [])

    def test_the_checks_can_fail(self):
        readme = ROOT / "README.md"
        self.assertEqual(broken_links(readme, "[a](docs/none.md) [b](#none) [c](LICENSE) [d](https://example.com)"),
                         ["docs/none.md", "#none"])
        self.assertEqual(missing_paths("`engine/none.h` `engine/runtime/engine.{h,cc}` `engine/*/none.cc`"),
                         ["engine/none.h", "engine/*/none.cc"])


# ---- commands and flags ----

def dev_commands():
    """(commands that ./dev help lists, commands that ./dev knows)"""
    script = (ROOT / "dev").read_text()
    helped = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    listed = set(re.findall(r"^\./dev ([\w-]+)", helped, re.M))
    known = re.search(r"^case \$command in\n(.*?)\)", script, re.S | re.M).group(1)
    return listed, {command.strip() for command in known.split("|")} - {"help"}


def used_dev_commands(text):
    return set(re.findall(r"(?:^|[\s`'\"(])\./dev ([a-z][\w-]*)", text))


@functools.cache
def flags_of(bin_dir):
    """{program: its flags}, those of all subcommands together."""
    flags = {}
    for program, helps in PROGRAMS.items():
        path = pathlib.Path(bin_dir) / program
        if not path.exists():
            continue
        text = ""
        for arguments in helps:
            done = subprocess.run([path, *arguments.split()], capture_output=True, text=True, check=False, timeout=60)
            text += done.stdout + done.stderr
        flags[program] = set(re.findall(r"--[a-z][\w-]*", text)) | {"--help", "--version"}
    return flags


def script_flags():
    """Flags of the Python programs and of shell scripts of the repository."""
    found = set()
    for path in files():
        if path.suffix == ".py":
            found |= set(re.findall(r'"(--[a-z][\w-]*)"', path.read_text()))
        elif path.suffix == ".sh" or path.name == "dev":
            found |= set(re.findall(r"--[a-z][\w-]*", path.read_text()))
    return found


def commands(text):
    """[(program, [flags])] of the lines of code blocks that run one of PROGRAMS."""
    found = []
    for block in re.findall(r"```\w*\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.split("#")[0].split()
            programs = [i for i, word in enumerate(words) if word.rsplit("/", 1)[-1] in PROGRAMS]
            if programs:
                rest = words[programs[0] + 1:]
                found.append((words[programs[0]].rsplit("/", 1)[-1],
                              [word.split("=")[0] for word in rest if re.match(r"--[a-z]", word)]))
    return found


# ---- docs/limits.md ----

def bytes_of(number):
    """'4 MiB' and '64' as numbers."""
    value, _, unit = number.partition(" ")
    return int(value) * {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def documented_limits(text):
    """{flag: default} of the tables whose rows are limit, flag, default and reason."""
    rows = re.findall(r"^\| [^|]+ \| `(--[\w-]+)` \| ([^|]+) \| [^|]+ \|$", text, re.M)
    return {flag: bytes_of(default) for flag, default in rows}


def limits_of_help(text):
    """{flag: default} of the group of limits of folio-server --help."""
    group = re.split(r"^Limits:\n", text, flags=re.M)[1].split("\n\n")[0]
    return {flag: int(default) for flag, default in re.findall(r"^  (--[\w-]+) .*=(\d+)$", group, re.M)}


class Limits(unittest.TestCase):
    def test_the_page_has_every_limit_with_its_default(self):
        server = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", "")) / "folio-server"
        if not server.is_file():
            self.skipTest("FOLIO_BIN_DIR does not name a folder with folio-server")
        helped = subprocess.run([server, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        limits = limits_of_help(helped)
        self.assertGreater(len(limits), 20)
        self.assertEqual(documented_limits((ROOT / "docs/limits.md").read_text()), limits)

    def test_the_checks_can_fail(self):
        self.assertEqual(documented_limits("| a | `--a-b` | 4 KiB | why |\n| b | `--c` | 7 | why |\n"), {"--a-b": 4096, "--c": 7})
        self.assertEqual(limits_of_help("Options:\n  --x INT=1\nLimits:\n  --a INT:INT in [1 - 9]=7\n     Text\n\nMore:\n"),
                         {"--a": 7})


class Commands(unittest.TestCase):
    def test_help_lists_every_command_of_dev(self):
        listed, known = dev_commands()
        self.assertEqual(listed, known)

    def test_documents_name_commands_of_dev(self):
        known = dev_commands()[1] | {"help"}
        texts = documents() + [path for path in files() if path.suffix in (".yml", ".yaml") or name(path) == ".ci/run"]
        used = {command: name(path) for path in texts for command in used_dev_commands(path.read_text())}
        self.assertIn("test", used)
        self.assertEqual({command: path for command, path in used.items() if command not in known}, {})

    def test_documents_name_flags_of_the_programs(self):
        bin_dir = os.environ.get("FOLIO_BIN_DIR")
        flags = flags_of(bin_dir) if bin_dir else {}
        if not {"folio", "folio-server", "folio-loadtest"} <= set(flags):
            self.skipTest("FOLIO_BIN_DIR does not name a folder with the programs")
        known = set().union(*flags.values()) | script_flags() | FOREIGN_FLAGS
        for path in documents():
            text = path.read_text()
            named = set(re.findall(r"`(--[a-z][\w-]*)", text))
            self.assertEqual(sorted(named - known), [], f"{name(path)} names flags that no program has")
            for program, used in commands(text):
                if program in flags:
                    self.assertEqual(sorted(set(used) - flags[program]), [], f"{name(path)}: {program} has no such flag")

    def test_the_checks_can_fail(self):
        self.assertEqual(used_dev_commands("run `./dev none` or\n./dev test\n"), {"none", "test"})
        self.assertEqual(commands("```\nbuild/release/bin/folio-server --model X --none=1  # --not\n```"),
                         [("folio-server", ["--model", "--none"])])


if __name__ == "__main__":
    unittest.main()
