"""folio-device-bench on the emulated device: its figures are JSON lines, one by one, and its switches and errors work.

    device_bench_test.py PROGRAM"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
SMALL = ["--model=synthetic:tiny", "--scale=512", "--repetitions=2", "--step_tokens=64", "--kv_bytes=67108864"]
ONE_LAYER = [*SMALL, "--model=synthetic:tiny/1"]


def bench(*args, **environment):
    return subprocess.run([PROGRAM, *args], env=dict(os.environ, **environment), capture_output=True, text=True)


def lines(text):
    return {line["name"]: line for line in map(json.loads, text.splitlines())}


class DeviceBench(unittest.TestCase):
    def test_lists_names_without_a_device(self):
        listed = bench("--list").stdout.split()
        self.assertEqual(len(listed), len(set(listed)))
        for name in ("ceilings/copy", "decode/full/1x4096", "prefill/long_heads/32768", "verbs/decode/full/1x4096"):
            self.assertIn(name, listed)
        self.assertEqual(bench("--list", "--only=ceilings,decode/mixed").stdout.split(),
                         ["ceilings/copy", "ceilings/product", "decode/mixed/16"])

    def test_refuses_what_is_not_there(self):
        unknown = bench("--only=decod")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("there is no measurement 'decod'", unknown.stderr)
        self.assertIn("at least 1", bench("--scale=0").stderr)
        self.assertIn("cannot write", bench("--json=/nowhere/figures", "--only=ceilings").stderr)
        self.assertIn("must be 0 or 1", bench("--only=ceilings", *SMALL, FOLIO_CUDA_PDL="off").stderr)

    def test_measures_what_it_is_asked_for(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "figures.jsonl")
            path.write_text('{"name": "of an earlier run"}\n')
            run = bench(f"--json={path}", "--only=decode/long_heads/1x4096,prefill/full/4096", *ONE_LAYER)
            self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
            figures = lines(path.read_text())
        self.assertEqual(list(figures), ["of an earlier run", "start", "decode/long_heads/1x4096", "prefill/full/4096"])
        self.assertEqual(list(figures)[1:], list(lines(run.stdout)))
        decode = figures["decode/long_heads/1x4096"]
        self.assertEqual(decode["status"], "ok")
        self.assertAlmostEqual(decode["tokens_per_s"] * decode["step_seconds"], 1)
        self.assertGreater(decode["of_copy"], 0)
        self.assertGreater(figures["prefill/full/4096"]["seconds_with_128_tokens"],
                           figures["prefill/full/4096"]["seconds"])

    def test_brings_pages_from_the_memory_of_the_host(self):
        pool = [*ONE_LAYER, "--kv_bytes=262144", "--kv_host_bytes=2097152"]
        run = bench("--only=tiers/decode/full,tiers/decode/long_heads,tiers/prefill/full", *pool)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
        tiers = lines(run.stdout)
        decode = tiers["tiers/decode/full/131072"]
        # A slice of synthetic:tiny has 2 KiB; its text of 256 tokens 17 pages of 8.
        self.assertGreater(decode["host_bytes"], 0)
        self.assertLessEqual(decode["host_bytes"], 17 * 8 * 2048)
        self.assertGreater(decode["host_copy_bytes_per_s"], 0)
        self.assertLessEqual(tiers["tiers/prefill/full/262144"]["reads_of_text"], 1)
        alone = lines(bench("--only=tiers/decode/full", *ONE_LAYER).stdout)["tiers/decode/full/131072"]
        self.assertEqual(alone["host_bytes"] + alone["host_copy_bytes_per_s"], 0)

    def test_breaks_a_step_down_by_verbs(self):
        prefill = bench("--only=verbs/prefill/full", *ONE_LAYER)
        self.assertEqual(prefill.returncode, 0, prefill.stderr + prefill.stdout)
        run = bench("--only=verbs/decode/long_heads", *SMALL)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
        decode = lines(run.stdout)["verbs/decode/long_heads/1x131072"]
        verbs = {row["verb"]: row for row in decode["verbs"]}
        # synthetic:tiny has 4 layers, 256 dimensions, 688 in its MLP and 512 words.
        self.assertEqual({verb: row["calls"] for verb, row in verbs.items()},
                         {"Embed": 1, "RmsNorm": 9, "MatMul 768x256": 4, "StoreKv": 4, "SummarizeChunks": 4, "Attend": 4,
                          "MatMul 256x256": 4, "MatMul 1376x256": 4, "SwiGlu": 4, "MatMul 256x688": 4,
                          "TakeLogitRows": 1, "MatMul 512x256": 1, "SampleTokens": 1})
        self.assertAlmostEqual(sum(row["seconds"] for row in verbs.values()), decode["step_seconds"])
        self.assertGreater(verbs["Attend"]["bytes_per_s"], 0)

    def test_what_does_not_fit_fails_alone(self):
        run = bench("--only=decode/full/32x4096,decode/full/1x4096", "--model=synthetic:tiny", "--scale=16",
                    "--repetitions=1", "--kv_bytes=4194304")
        self.assertEqual(run.returncode, 1, run.stderr + run.stdout)
        figures = lines(run.stdout)
        self.assertEqual(figures["decode/full/32x4096"]["status"], "failed")
        self.assertIn("does not fit the KV cache", figures["decode/full/32x4096"]["error"])
        self.assertEqual(figures["decode/full/1x4096"]["status"], "ok")

    def test_what_a_device_cannot_measure_is_skipped(self):
        run = bench("--only=verbs/decode/full/1x4096,decode/full/1x4096", "--device=cpu", *SMALL)
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
        figures = lines(run.stdout)
        self.assertEqual(figures["verbs/decode/full/1x4096"]["status"], "skipped")
        self.assertIn("no clock", figures["verbs/decode/full/1x4096"]["error"])
        self.assertEqual(figures["decode/full/1x4096"]["status"], "ok")

    def test_switches_change_no_result_of_a_run(self):
        for switch in ({"FOLIO_CUDA_GRAPHS": "0"}, {"FOLIO_CUDA_PDL": "0"}, {"FOLIO_CUDA_SYNC": "1"}):
            run = bench("--only=decode/full/1x4096", *SMALL, **switch)
            self.assertEqual(lines(run.stdout)["decode/full/1x4096"]["status"], "ok", run.stderr)


if __name__ == "__main__":
    unittest.main()
