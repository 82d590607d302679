"""The folder tree is the architecture: checks every #include against the layers of the design."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#include\s*[<"]([^>"]+)[>"]', re.M)

# Folder of engine/ -> folders of engine/ that it may include, itself aside.
ENGINE = {
    "base": set(),
    "tensor": set(),
    "types": {"base", "tensor"},
    "attention": {"base", "types", "tensor"},
    "backend": {"base", "types", "tensor", "attention", "sampling"},
    "kv": {"base", "types", "tensor"},
    "store": {"base", "types", "tensor"},
    "model": {"base", "types", "tensor", "backend"},
    "tokenizer": {"base", "model"},
    "chat": {"base", "model", "tokenizer"},
    "grammar": {"base", "types", "model", "tokenizer"},
    "sampling": {"base", "types"},
    "sched": {"base", "types", "tensor", "kv", "attention", "sampling"},
    "runtime": {"base", "types", "tensor", "attention", "backend", "kv", "model", "tokenizer",
                "chat", "grammar", "sampling", "sched", "store"},
    "tools": {"base", "types", "tensor", "attention", "backend", "kv", "model", "tokenizer",
              "chat", "grammar", "sampling", "sched", "store", "runtime"},
}
SERVER_MAY_USE = {"runtime", "types", "tokenizer", "chat", "grammar", "base"}
NETWORK = re.compile(r"^(grpc|google/protobuf|google/rpc|prometheus|folio/v1)")


def sources(folder):
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in (".h", ".cc", ".cu", ".cuh"):
            yield path, INCLUDE.findall(path.read_text())


def violations(folder, allowed):
    """['file includes header'] where allowed(path, header) is false."""
    return [f"{path.relative_to(ROOT)} includes {header}"
            for path, headers in sources(folder) for header in headers if not allowed(path, header)]


class Layering(unittest.TestCase):
    def test_engine_folders_include_only_lower_ones(self):
        def allowed(path, header):
            if not header.startswith("engine/"):
                return True
            own = path.relative_to(ROOT).parts[1]
            used = header.split("/")[1]
            return used == own or used in ENGINE[own]
        self.assertEqual(violations("engine", allowed), [])

    def test_every_engine_folder_has_its_place(self):
        folders = {p.name for p in (ROOT / "engine").iterdir() if p.is_dir()}
        self.assertEqual(folders, set(ENGINE))

    def test_engine_knows_no_network(self):
        self.assertEqual(violations("engine", lambda _, header: not NETWORK.match(header)), [])

    def test_server_sees_the_engine_through_its_front_door(self):
        def allowed(_, header):
            parts = header.split("/")
            if parts[0] == "engine":
                return parts[1] in SERVER_MAY_USE
            return parts[0] not in ("client", "loadtest") and "cuda" not in header
        self.assertEqual(violations("server", allowed), [])

    def test_the_edge_knows_sockets_tls_and_frames_only(self):
        def allowed(_, header):
            return not NETWORK.match(header) and header.startswith(
                ("absl/", "engine/base/", "engine/types/", "openssl/", "server/edge/", "server/limits.h", "server/clock.h")) or "/" not in header \
                or header.startswith(("sys/", "netinet/"))
        self.assertEqual(violations("server/edge", allowed), [])

    def test_client_and_load_generator_see_the_api_only(self):
        # `folio plan` works offline, from config.json and formulas.
        def allowed(path, header):
            if "plan" in path.relative_to(ROOT).parts and header.startswith("engine/"):
                return header.split("/")[1] in ("attention", "model", "types")
            return not header.startswith(("engine/", "server/"))
        for folder in ("client", "loadtest"):
            self.assertEqual(violations(folder, allowed), [])

    def test_attention_never_sees_a_backend(self):
        self.assertEqual(
            violations("engine/attention", lambda _, h: not h.startswith("engine/backend")), [])

    def test_device_code_is_plain(self):
        """.cu files see no library's headers but CUDA's and C++'s own, through any header of ours."""
        def reached(path, seen):
            for header in INCLUDE.findall(path.read_text()):
                if header not in seen:
                    seen.add(header)
                    if header.startswith("engine/"):
                        reached(ROOT / header, seen)
            return seen
        files = sorted((ROOT / "engine/backend/cuda").glob("*.cu"))
        self.assertGreater(len(files), 9)
        found = set().union(*(reached(path, set()) for path in files))
        self.assertIn("engine/types/plan_reading.h", found)
        self.assertEqual([header for header in found if header.startswith(("absl/", "nlohmann/"))], [])

    def test_the_check_can_fail(self):
        self.assertNotEqual(violations("engine", lambda _, header: header != "engine/types/kv_types.h"), [])


class Headers(unittest.TestCase):
    def test_each_is_guarded_by_pragma_once_before_anything_else(self):
        def guarded(text):
            code = [line for line in text.splitlines() if line.strip() and not line.startswith("//")]
            return code[0] == "#pragma once" and not re.search(r"#ifndef \w+_H_\b", text)
        headers = [path for folder in ("client", "engine", "loadtest", "proto", "server", "tests")
                   for path in sorted((ROOT / folder).rglob("*.h"))]
        self.assertGreater(len(headers), 100)
        self.assertEqual([str(path.relative_to(ROOT)) for path in headers if not guarded(path.read_text())], [])
        self.assertFalse(guarded("// A comment.\n#ifndef FOLIO_X_H_\n#define FOLIO_X_H_\n#pragma once\n"))


class Kernels(unittest.TestCase):
    def test_every_kernel_waits_for_the_one_before(self):
        """simt.h: launches overlap, so a kernel that does not wait would read what is not written yet."""
        kernel = re.compile(r"FOLIO_KERNEL void[^{]*\{\s*(BeginKernel\(\);|AllowNext\(\);)?")
        files = sorted((ROOT / "engine/backend/cuda").glob("*.cu"))
        found = [(path.name, match) for path in files for match in kernel.finditer(path.read_text())]
        self.assertGreater(len(found), 20)
        self.assertEqual([name for name, match in found if match.group(1) is None], [])
        # The one that begins its loads earlier waits itself.
        early = {name for name, match in found if match.group(1) == "AllowNext();"}
        self.assertEqual(early, {"gemv.cu"})
        self.assertIn("WaitForEarlier();", (ROOT / "engine/backend/cuda/gemv.cu").read_text())


if __name__ == "__main__":
    unittest.main()
