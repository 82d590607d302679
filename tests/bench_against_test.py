"""./dev bench --against: ratios, goals and refusals with programs that only pretend, and the GGUF files it needs."""
import contextlib
import io
import json
import math
import pathlib
import struct
import sys
import tempfile
import unittest

import bench_fakes

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools" / "against"), str(ROOT / "tools")]
import bench_compare  # noqa: E402
import gguf_models  # noqa: E402
import llama_bench  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402

ROW = {row.name: row for row in rows.ROWS}


class Against(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="folio-against-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        self.log = self.directory / "log"
        for path, _, _ in gguf_models.files(self.directory):
            path.parent.mkdir(exist_ok=True)
            path.touch()
        self.folio()

    def folio(self, **speeds):
        bench_fakes.folio_bench(self.directory / "bin" / "folio-bench", log=self.log, **speeds)

    def peer(self, name, seconds, **more):
        bench_fakes.llama_bench(self.directory / name / "llama-bench", seconds, log=self.log, **more)

    def run_it(self, *arguments):
        """(exit status, what it printed, its record)"""
        output = self.directory / "record.json"
        output.unlink(missing_ok=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run.main([str(self.directory), *arguments, f"--bin={self.directory / 'bin'}", f"--output={output}"])
        return code, out.getvalue(), json.loads(output.read_text()) if output.exists() else None

    def calls(self):
        return [line.split() for line in self.log.read_text().splitlines()]

    def line_of(self, text, row):
        return next(line for line in text.splitlines() if line.startswith(f"{row}  "))

    def test_the_ratio_is_to_the_better_peer_in_its_best_format(self):
        self.peer("llama.cpp", {"bf16": 0.2, "f16": 0.25})
        self.peer("ik_llama.cpp", {"bf16": 0.16, "f16": 0.125})
        code, text, record = self.run_it("decode-bf16")
        self.assertEqual(code, 0)
        line = self.line_of(text, "decode-bf16")
        self.assertIn("10.00 [10.00..10.00]", line)
        self.assertIn("5.00 [5.00..5.00] bf16", line)
        self.assertIn("8.00 [8.00..8.00] f16", line)
        self.assertRegex(line, r"1\.25 +0\.96 +21\.0 GB/s read +1 x the peer, 0\.95 of the read +reached$")
        (result,) = record["results"]
        self.assertEqual(result["case"], {"row": "decode-bf16", "strategy": "full", "depth": 0, "weights": "bf16"})
        self.assertEqual(result["metrics"]["peer_ratio"], 1.25)
        self.assertEqual(result["samples"], {"folio": [10.0] * 3, "llama.cpp": [5.0] * 3, "ik_llama.cpp": [8.0] * 3})
        self.assertEqual((result["best_peer"], result["formats"]["llama.cpp"]), ("ik_llama.cpp", "bf16"))
        self.assertEqual(record["peers"]["llama.cpp"]["build_commit"], "abc1")

    def test_programs_take_turns_and_a_peer_goes_on_in_its_best_format(self):
        self.peer("ik_llama.cpp", {"q4_0": 0.2, "q4_0 -rtr": 0.1})
        code, text, _ = self.run_it("decode-int4", "--rounds=4")
        self.assertEqual(code, 0)
        self.assertIn("10.00 [10.00..10.00] q4_0 -rtr 1", self.line_of(text, "decode-int4"))
        self.assertEqual([call[0] for call in self.calls()], ["bin", "ik_llama.cpp", "ik_llama.cpp"] + ["bin", "ik_llama.cpp"] * 3)
        self.assertTrue(all("-rtr" in call for call in self.calls()[2:] if call[0] != "bin"))

    def test_the_ratio_is_the_median_of_those_of_the_rounds(self):
        results = run.Results(ROW["decode-bf16"])
        results.folio = [{"decode_tokens_per_s": speed, "bandwidth_share": 1.0} for speed in (10, 20, 12)]
        results.peers = {"a": {"bf16": [5, 5, 12]}, "b": {"bf16": [1, 2, 90]}}
        self.assertEqual((results.best_peer(), results.ratio()), ("a", 2))

    def test_goals_are_missed_by_the_ratio_or_by_the_share(self):
        self.peer("ik_llama.cpp", {"bf16": 0.1, "f16": 0.09})
        self.assertRegex(self.line_of(self.run_it("decode-bf16")[1], "decode-bf16"), r" 0\.90 .* missed$")
        self.peer("ik_llama.cpp", {"bf16": 0.2, "f16": 0.2})
        self.folio(share=0.94)
        self.assertRegex(self.line_of(self.run_it("decode-bf16")[1], "decode-bf16"), r" 2\.00 +0\.94 .* missed$")
        self.assertRegex(self.line_of(self.run_it("decode-2k")[1], "decode-2k"), r" -$")

    def test_prefill_is_that_of_the_prompt(self):
        self.peer("ik_llama.cpp", {"q8_0": 0.1, "q8_0 -rtr": 0.125})
        line = self.line_of(self.run_it("prefill-int8")[1], "prefill-int8")
        self.assertRegex(line, r"40\.00 .* 10\.00 \[10\.00\.\.10\.00\] q8_0 +4\.00 +0\.96 +200\.0 GFLOP/s fp32 +3 x the peer +reached")

    def test_a_matrix_unit_has_goals_of_its_own(self):
        self.peer("ik_llama.cpp", {"bf16": 0.125, "f16": 0.125})
        line = self.line_of(self.run_it("prefill-bf16")[1], "prefill-bf16")
        self.assertRegex(line, r" 0\.96 +200\.0 GFLOP/s fp32 +0\.7 of fp32 +reached$")
        self.folio(matrix_unit_share=0.55)
        code, text, record = self.run_it("prefill-bf16")
        self.assertRegex(self.line_of(text, "prefill-bf16"),
                         r" 5\.00 +0\.55 +5000\.0 GFLOP/s matrix unit +5 x the peer, 0\.5 of the matrix unit +reached$")
        self.assertEqual(record["results"][0]["metrics"]["matrix_unit_share"], 0.55)
        self.folio(matrix_unit_share=0.45)
        self.assertRegex(self.line_of(self.run_it("prefill-bf16")[1], "prefill-bf16"), r" missed$")

    def test_a_prompt_behind_a_depth_is_put_together_from_few_layers(self):
        self.folio(prefill=80.0, matrix_unit_share=0.2)
        self.peer("ik_llama.cpp", {"bf16": 0.02, "f16": 0.03, "q4_0": 0.01}, per_key=1e-7)
        code, text, record = self.run_it("prefill-32k")
        self.assertEqual(code, 0)
        # 22 layers: the prompt itself, its half, and what lies before it.
        seconds = 0.02 + 22 * 1e-7 * (256 + 32768)
        line = self.line_of(text, "prefill-32k")
        self.assertIn(f"{1 / seconds:.2f} [{1 / seconds:.2f}..{1 / seconds:.2f}] bf16", line)
        self.assertRegex(line, r" 0\.20 +5000\.0 GFLOP/s matrix unit +8 x the peer, 0\.35 of the matrix unit +missed$")
        self.assertEqual(record["results"][0]["case"], {"row": "prefill-32k", "strategy": "full", "depth": 32768, "weights": "bf16"})
        read = [call for call in self.calls() if call[0] == "ik_llama.cpp" and "2-layers" in " ".join(call)]
        self.assertEqual({call[call.index("-p") + 1] for call in read}, {"4096", "16384"})

    def test_a_batch_is_that_of_another_program(self):
        self.peer("ik_llama.cpp", {"q4_0": 0.1})
        bench_fakes.llama_batched_bench(self.directory / "ik_llama.cpp" / "llama-batched-bench", {"q4_0": 4.0, "q4_0 -rtr": 2.0},
                                        log=self.log)
        code, text, record = self.run_it("batch-8")
        self.assertEqual(code, 0, text)
        self.assertRegex(self.line_of(text, "batch-8"), r"10\.00 .* 4\.00 \[4\.00\.\.4\.00\] q4_0 -rtr 1 +2\.50 .* 2 x the peer +reached$")
        self.assertEqual(record["results"][0]["case"]["streams"], 8)
        folio = next(call for call in self.calls() if call[0] == "bin")
        self.assertLess({"--streams=8", "--depths=1024,4096", "--strategies=full,long_heads,lm_infinite"}, set(folio))
        peer = next(call for call in self.calls() if "-npl" in call)
        self.assertEqual([peer[peer.index(flag) + 1] for flag in ("-npp", "-npl")], ["2560", "8"])
        self.assertFalse(pathlib.Path("llama.log").exists())

    def test_the_streams_of_a_batch_share_their_prompt_in_either_peer(self):
        for name in ("llama.cpp", "ik_llama.cpp"):
            self.peer(name, {"q4_0": 0.1})
            bench_fakes.llama_batched_bench(self.directory / name / "llama-batched-bench", {"q4_0": 4.0, "q4_0 -rtr": 4.0})
        code, text, record = self.run_it("batch-8")
        self.assertEqual(code, 0, text)
        self.assertEqual(record["results"][0]["samples"].keys(), {"folio", "llama.cpp", "ik_llama.cpp"})

    def test_a_peer_without_the_program_of_batches_fails_there_only(self):
        self.peer("ik_llama.cpp", {"q4_0": 0.1, "bf16": 0.2, "f16": 0.2})
        code, text, record = self.run_it("batch-8", "decode-bf16")
        self.assertEqual(code, 1)
        self.assertIn("llama-batched-bench does not run: No such file or directory", text)
        self.assertRegex(self.line_of(text, "decode-bf16"), r" 2\.00 ")

    def test_a_depth_is_put_together_from_few_layers(self):
        # 0.1 s of weights and 2 us for each key and layer, as the fake takes it for any depth it is asked for.
        for peer in ("llama.cpp", "ik_llama.cpp"):
            self.peer(peer, {"bf16": 0.1, "f16": 0.2, "q4_0": 0.05, "q4_0 -rtr": 0.05}, per_key=2e-6)
        _, text, record = self.run_it("decode-2k", "decode-8k", "long-heads-32k", "long-heads-128k")
        speeds = {result["case"]["row"]: result["samples"]["ik_llama.cpp"][0] for result in record["results"]}
        for row, weights, depth in (("decode-2k", 0.1, 2_048), ("decode-8k", 0.1, 8_192), ("long-heads-32k", 0.05, 32_768),
                                    ("long-heads-128k", 0.05, 131_072)):
            self.assertAlmostEqual(speeds[row], 1 / (weights + 22 * depth * 2e-6), delta=0.002, msg=row)
        self.assertIn("long-heads-128k", text)
        whole = [call for call in self.calls() if call[0] != "bin" and "2-layers" not in " ".join(call)]
        deep = [flag for call in whole for flag in call if flag.startswith(("2048", "8192", "32768", "131072"))]
        self.assertEqual(set(deep), {"2048", "2048,32"})

    def test_a_depth_is_measured_directly_if_asked(self):
        self.peer("ik_llama.cpp", {"bf16": 0.1, "f16": 0.2}, per_key=2e-6)
        self.run_it("decode-8k", "--direct=8192")
        self.assertEqual([call for call in self.calls() if "2-layers" in " ".join(call)], [])
        self.assertIn("8192,32", sum(self.calls(), []))

    def test_a_peer_that_is_missing_is_named(self):
        self.peer("ik_llama.cpp", {"bf16": 0.2, "f16": 0.2})
        code, text, _ = self.run_it("decode-bf16")
        self.assertEqual(code, 0)
        self.assertIn("llama.cpp/llama-bench is not there: measured without llama.cpp\n", text)

    def test_without_peers_or_models_nothing_is_measured(self):
        code, text, record = self.run_it("decode-bf16")
        self.assertEqual((code, record), (2, None))
        self.assertIn("no peer to compare with", text)
        self.peer("ik_llama.cpp", {"bf16": 0.2, "f16": 0.2})
        path = gguf_models.files(self.directory)[0][0]
        path.unlink()
        code, text, record = self.run_it("decode-bf16")
        self.assertEqual((code, record), (2, None))
        self.assertIn(f"{path}; ./dev bench-models writes it", text)
        self.assertFalse(self.log.exists())

    def test_a_peer_that_fails_leaves_the_others(self):
        self.peer("llama.cpp", {"bf16": 0.2, "f16": 0.2})
        self.peer("ik_llama.cpp", {})
        code, text, record = self.run_it("decode-bf16")
        self.assertEqual(code, 1)
        self.assertRegex(self.line_of(text, "decode-bf16"), r"f?16 +failed +2\.00")
        self.assertIn("FAILED: decode-bf16: ik_llama.cpp, bf16: exit status 1, it said: cannot load bf16", text)
        self.assertNotIn("ik_llama.cpp", record["results"][0]["samples"])
        self.assertEqual(len(record["results"][0]["errors"]), 2)

    def test_without_a_peer_that_runs_there_is_no_ratio(self):
        self.peer("ik_llama.cpp", {})
        code, text, record = self.run_it("decode-bf16")
        self.assertEqual(code, 1)
        self.assertRegex(self.line_of(text, "decode-bf16"), r"failed +- .* no peer$")
        self.assertNotIn("peer_ratio", record["results"][0]["metrics"])

    def test_a_format_that_fails_leaves_the_other(self):
        self.peer("ik_llama.cpp", {"f16": 0.2})
        code, text, _ = self.run_it("decode-bf16")
        self.assertEqual(code, 1)
        self.assertIn("5.00 [5.00..5.00] f16", self.line_of(text, "decode-bf16"))

    def test_output_of_another_kind_is_refused(self):
        for output in ("", "| model | t/s |", "{}", "[]", "[1]", '[{"samples_ns": []}]', '[{"samples_ns": [0]}]',
                       '[{"samples_ns": ["a"]}]', '[{"samples_ns": [1]}, {"samples_ns": [1]}]', '[{"avg_ts": 1}]'):
            with self.subTest(output=output), self.assertRaises(llama_bench.PeerFailed):
                llama_bench.seconds_per_token(output, 1)
        self.assertEqual(llama_bench.seconds_per_token('[{"samples_ns": [4e9, 2e9, 9e9]}]', 4)[0], 1)

    def test_a_folio_bench_that_fails_ends_the_run(self):
        self.peer("ik_llama.cpp", {"bf16": 0.2, "f16": 0.2})
        for body in ("sys.exit('no memory')", "print('text')"):
            bench_fakes.write_program(self.directory / "bin" / "folio-bench", body)
            code, text, record = self.run_it("decode-bf16")
            self.assertEqual((code, record), (1, None))
            self.assertIn("folio-bench", text)

    def test_wrong_arguments_are_refused(self):
        for wrong in (["decode-none"], ["--rounds=2"]):
            with self.subTest(wrong=wrong), self.assertRaises(SystemExit) as exit_, contextlib.redirect_stderr(io.StringIO()):
                run.main([str(self.directory), *wrong])
            self.assertEqual(exit_.exception.code, 2)

    def test_bench_compare_reads_the_record_and_judges_the_ratio(self):
        self.peer("ik_llama.cpp", {"bf16": 0.2, "f16": 0.2})
        before = self.run_it("decode-bf16")[2]
        self.folio(decode=8.0)
        after = self.run_it("decode-bf16")[2]
        paths = [self.directory / name for name in ("a.json", "b.json")]
        for path, record in zip(paths, (before, after)):
            path.write_text(json.dumps(record))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(bench_compare.main(list(map(str, paths))), 1)
        self.assertRegex(out.getvalue(), r"peer_ratio +2 +1\.6 +0\.800 worse")


class Reader:
    """What a GGUF file holds, read by its specification."""

    def __init__(self, path):
        self.data, self.at = path.read_bytes(), 4
        assert self.data[:4] == b"GGUF"
        self.version, count, pairs = self.take("<IQQ")
        self.entries = {self.text(): self.value(self.take("<I")[0]) for _ in range(pairs)}
        self.tensors = {}
        for _ in range(count):
            name, (rank,) = self.text(), self.take("<I")
            self.tensors[name] = (self.take(f"<{rank}Q"), *self.take("<IQ"))
        self.begin = -(-self.at // 32) * 32

    def take(self, layout):
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def text(self):
        (size,) = self.take("<Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("<IQ")
            return [self.value(inner) for _ in range(count)]
        return self.take({4: "<I", 5: "<i", 6: "<f", 7: "<?"}[kind])[0]

    def bytes_of(self, name, size):
        offset = self.begin + self.tensors[name][2]
        return self.data[offset:offset + size]


class Models(unittest.TestCase):
    SHAPE = gguf_models.Shape("small", layers=2, hidden=256, intermediate=512, heads=4, kv_heads=2, vocab=300)

    def written(self, name):
        with tempfile.TemporaryDirectory() as directory:
            path = gguf_models.path_of(directory, self.SHAPE, name)
            gguf_models.write_model(path, self.SHAPE, name)
            return Reader(path)

    def test_files_are_gguf_and_of_the_size_of_their_tensors(self):
        for name, kind, weights, size in (("bf16", 30, 1, 2), ("f16", 1, 1, 2), ("q8_0", 8, 32, 34), ("q4_0", 2, 32, 18)):
            file = self.written(name)
            self.assertEqual((file.version, len(file.tensors), file.begin % 32), (3, 3 + 2 * 9, 0))
            self.assertEqual(file.tensors["blk.1.ffn_down.weight"][:2], ((512, 256), kind))
            self.assertEqual(file.tensors["blk.0.attn_k.weight"][0], (256, 128))
            self.assertEqual(file.tensors["output.weight"][1], 14 if name == "q4_0" else kind)
            end = file.begin
            for dims, tensor_kind, offset in file.tensors.values():
                self.assertEqual(file.begin + offset, end)
                elements, block = {0: (1, 4), 14: (256, 210)}.get(tensor_kind, (weights, size))
                end += -(-math.prod(dims) // elements * block // 32) * 32
            self.assertEqual(len(file.data), end)

    def test_the_vocabulary_has_the_size_of_the_embedding(self):
        file = self.written("q8_0")
        tokens, kinds = (file.entries[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
        self.assertEqual((len(tokens), len(kinds), len(set(tokens))), (300, 300, 300))
        self.assertEqual((tokens[:3], tokens[3 + 10], kinds[:4]), (["<unk>", "<s>", "</s>"], "<0x0A>", [2, 3, 3, 6]))
        self.assertEqual((file.entries["llama.block_count"], file.entries["general.architecture"]), (2, "llama"))

    def test_weights_are_small_finite_numbers(self):
        data = self.written("f16").bytes_of("blk.0.ffn_up.weight", 1024)
        halves = struct.unpack("<512e", data)
        self.assertTrue(all(0.01 < abs(value) < 0.04 for value in halves))
        self.assertGreater(len(set(halves)), 300)
        words = struct.unpack("<512H", self.written("bf16").bytes_of("blk.0.ffn_up.weight", 1024))
        floats = struct.unpack("<512f", b"".join(struct.pack("<I", word << 16) for word in words))
        self.assertTrue(all(0.007 < abs(value) < 0.04 for value in floats) and min(floats) < 0 < max(floats))
        scale = struct.unpack_from("<e", self.written("q4_0").bytes_of("blk.1.attn_q.weight", 36), 18)[0]
        self.assertAlmostEqual(scale, 0.02 / 4.6, places=4)

    def test_rows_that_no_block_divides_are_refused(self):
        with self.assertRaises(ValueError):
            gguf_models.size_of((100, 4), "q8_0")


if __name__ == "__main__":
    unittest.main()
