#!/usr/bin/env python3
"""Looks with readelf whether the programs that face strangers or their files were built with cmake/Hardening.cmake.

FOLIO_BIN_DIR=<folder of the programs>
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

PROGRAMS = ("folio-server", "folio")


def readelf(program):
    options = ["--file-header", "--program-headers", "--dynamic", "--dyn-syms", "--wide"]
    return subprocess.run(["readelf", *options, program], capture_output=True, text=True, check=True).stdout


def missing(program):
    """What the program lacks."""
    text = readelf(program)
    stack = re.search(r"GNU_STACK.* (R\w+) ", text)
    has = {
        "position-independent code": re.search(r"Type:\s+DYN \(Position-Independent", text),
        "relocations that cannot be written": "GNU_RELRO" in text,
        "symbols bound at the start": re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*\bNOW\b", text),
        "a stack that cannot be executed": stack and "E" not in stack.group(1),
        "canaries": "__stack_chk_fail" in text,
        "checked copies": re.search(r"\b__(?!stack)\w+_chk\b", text),
    }
    return [what for what, there in has.items() if not there]


class Hardening(unittest.TestCase):
    def test_programs_lack_nothing(self):
        bin_dir = os.environ.get("FOLIO_BIN_DIR")
        if not bin_dir or not shutil.which("readelf"):
            self.skipTest("FOLIO_BIN_DIR is not set, or there is no readelf")
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertEqual(missing(pathlib.Path(bin_dir, program)), [])

    @unittest.skipUnless(shutil.which("gcc") and shutil.which("readelf"), "no gcc or readelf")
    def test_the_check_can_fail(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "a.c"), pathlib.Path(folder, "a")
            source.write_text("#include <string.h>\nint main(int n, char** v) { char a[8]; strcpy(a, v[0]); return a[n]; }\n")
            subprocess.run(["gcc", "-O2", "-U_FORTIFY_SOURCE", "-fno-stack-protector", "-no-pie", "-z", "norelro", "-z", "lazy",
                            "-z", "execstack", source, "-o", program], check=True, capture_output=True)
            self.assertEqual(len(missing(program)), 6)


if __name__ == "__main__":
    unittest.main()
