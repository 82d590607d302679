"""The whole product as its users run it: server, command line client, load generator, on the bundled model."""
import concurrent.futures
import json
import os
import pathlib
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from running_server import RunningServer, wait_for  # noqa: E402

BIN = pathlib.Path(os.environ.get("FOLIO_BIN_DIR", ROOT / "build/release/bin"))
MODEL = ROOT / "models" / "folio-tiny"
QUESTION = "What is the pass key? The pass key is"
GRASS = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


def haystack(repeats, key, depth=0.5):
    half = int(repeats * depth)
    needle = f"The pass key is {key}. Remember it. {key} is the pass key. "
    return (GRASS * half + needle + GRASS * (repeats - half)).strip()


class SystemTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.server = RunningServer(BIN, MODEL, "--kv-bytes=1500000000").__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.directory.cleanup()

    def path(self, name, text):
        path = pathlib.Path(self.directory.name) / name
        path.write_text(text)
        return path

    def kv_used(self):
        """As of the last step: a little behind what a client has seen."""
        return self.server.metrics()['folio_kv_cache_bytes{tier="device",state="used"}']

    def kv_used_when_idle(self):
        wait_for(lambda: self.server.metrics()["folio_num_requests_running"] == 0, "nothing runs")
        return self.kv_used()

    def ask(self, *args):
        result = self.server.folio("--json", "ask", *args)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        text = "".join(e["delta"].get("text", "") for e in events if "delta" in e)
        return result.returncode, events, text

    def test_long_heads_finds_the_fact_that_lm_infinite_cannot_see(self):
        path = self.path("hay.txt", haystack(120, 51627))
        answers = {s: self.ask("--document", path, "--question", QUESTION, "--strategy", s,
                               "--max-new-tokens", 7)[2] for s in ("long_heads", "lm_infinite")}
        self.assertEqual(answers["long_heads"].strip()[:5], "51627")
        self.assertNotEqual(answers["lm_infinite"].strip()[:5], "51627")

    def test_evidence_quotes_the_needle_by_its_bytes(self):
        text = haystack(150, 40963, 0.4)
        path = self.path("evidence.txt", text)
        _, events, answer = self.ask("--document", path, "--question", QUESTION, "--strategy", "long_heads",
                                  "--max-new-tokens", 6, "--evidence", 8)
        self.assertIn("40963", answer)
        spans = next(e["evidence"]["spans"] for e in events if "evidence" in e)
        self.assertEqual([int(s["votes"]) for s in spans], sorted((int(s["votes"]) for s in spans), reverse=True))
        for span in spans:
            quoted = text.encode()[int(span["byte_begin"]):int(span["byte_end"])].decode()
            self.assertEqual(quoted, span["text"])
        needle = text.index("The pass key is")
        self.assertTrue(any(needle - 60 < int(s["byte_begin"]) < needle + 80 for s in spans[:3]), spans)
        refused = self.server.folio("ask", "--question", "hi", "--strategy", "streaming", "--evidence", 1)
        self.assertIn("streaming cannot give evidence", refused.stderr)

    def test_coverage_finds_the_needle_and_resumes_from_its_file(self):
        table = self.path("coverage.csv", "")
        command = ["--json", "eval", "coverage", "--tokens", 2048, "--trials", 3, "--output", table]
        done = self.server.folio(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line)["coverage"] for line in done.stdout.splitlines()]
        self.assertEqual(rows[-1]["layer"], "all")
        self.assertGreater(max(r["right_first"] for r in rows), 0.3)
        for row in rows:
            self.assertTrue(0 < row["coverage"] <= 1 and 0 < row["uniformity"] <= 1, row)
        again = self.server.folio(*command, "--resume")
        self.assertEqual(again.stdout, done.stdout)
        refused = self.server.folio("eval", "coverage", "--tokens", 2048, "--trials", 1, "--strategies", "full")
        self.assertIn("cannot give evidence", refused.stderr)

    def test_an_interrupted_measurement_keeps_its_answers(self):
        table = self.path("passkey.csv", "")
        command = ["eval", "passkey", "--tokens", 512, "--trials", 4, "--strategies", "full", "--output", table]
        first = self.server.folio(*command)
        lines = pathlib.Path(table).read_text().splitlines()
        self.assertEqual(len(lines), 5, first.stderr)
        pathlib.Path(table).write_text("\n".join(lines[:3]) + "\nfull,51")
        again = self.server.folio(*command, "--resume")
        self.assertEqual(again.stdout, first.stdout)
        self.assertEqual([line.split(",")[:8] for line in pathlib.Path(table).read_text().splitlines()],
                         [line.split(",")[:8] for line in lines])
        other = self.server.folio("eval", "passkey", "--tokens", 300, "--trials", 1, "--strategies", "lm_infinite",
                                  "--output", table, "--resume")
        self.assertNotIn("full", other.stdout)
        kept = pathlib.Path(table).read_text().splitlines()
        self.assertEqual(sorted(line.split(",")[0] for line in kept[1:]), 4 * ["full"] + ["lm_infinite"])

    def test_score_sums_up_and_needs_bounded_memory_under_a_window(self):
        path = self.path("score.txt", haystack(120, 11111))
        lines = [json.loads(line) for line in self.server.folio(
            "--json", "score", path, "--strategy", "lm_infinite", "--repeat", 5).stdout.splitlines()]
        buckets = [line["bucket"] for line in lines if "bucket" in line]
        done = lines[-1]["completed"]
        self.assertEqual(sum(int(b["num_tokens"]) for b in buckets), int(done["num_tokens"]) - 1)
        self.assertAlmostEqual(sum(b["log_likelihood"] for b in buckets), done["log_likelihood"], places=3)
        self.assertLess(int(done["memory"]["device_kv_bytes_peak"]), 3_000_000)

    def test_every_listed_pair_runs_or_is_refused_with_the_listed_reason(self):
        catalogue = json.loads(self.server.folio("--json", "strategies").stdout)
        prompt = haystack(20, 23232) + " " + QUESTION
        for strategy in catalogue["strategies"]:
            refused = {r["position"]: r["reason"] for r in strategy["refused_positions"]}
            for position in catalogue["positions"]:
                if position["refused"]:
                    continue
                done = self.server.folio("ask", "--question", prompt, "--strategy", strategy["name"], "--position",
                                         position["name"], "--max-new-tokens", 2)
                if position["name"] in refused:
                    self.assertIn(refused[position["name"]], done.stderr)
                else:
                    self.assertEqual(done.returncode, 0, (strategy["name"], position["name"], done.stderr))

    def test_truncation_reads_a_part_of_an_uploaded_document(self):
        path = self.path("truncated.txt", haystack(100, 56565, 1.0))
        self.assertEqual(self.server.folio("upload", path, "--id", "cut", "--strategy", "lm_infinite").returncode, 0)
        _, events, answer = self.ask("--document", "cut", "--question", QUESTION, "--strategy", "truncation",
                                  "--max-new-tokens", 6)
        self.assertIn("56565", answer)
        self.assertLessEqual(int(events[-1]["completed"]["usage"]["prompt_tokens"]), 250)
        _, _, answer = self.ask("--document", "cut", "--question", QUESTION, "--strategy", "truncation:side=right",
                             "--max-new-tokens", 6)
        self.assertNotIn("56565", answer)

    def test_second_question_reuses_the_document(self):
        path = self.path("reuse.txt", haystack(60, 10203))
        self.ask("--document", path, "--question", QUESTION)
        _, events, _ = self.ask("--document", path, "--question", QUESTION)
        usage = events[-1]["completed"]["usage"]
        self.assertGreater(int(usage["cached_tokens"]), 1000)
        self.assertLess(int(usage["prompt_tokens"]) - int(usage["cached_tokens"]), 40)

    def test_events_come_in_order_and_numbered(self):
        _, events, _ = self.ask("--question", "In the beginning", "--max-new-tokens", 5)
        self.assertIn("accepted", events[0])
        self.assertIn("completed", events[-1])
        self.assertEqual([int(e.get("sequence", 0)) for e in events], list(range(len(events))))

    def test_sampling_is_reproducible_by_its_seed(self):
        flags = ["--question", "And it came to pass", "--max-new-tokens", 20, "--temperature", 1.0]
        first, second, other = (self.ask(*flags, "--seed", seed)[2] for seed in (7, 7, 8))
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_stop_string_never_appears(self):
        _, events, text = self.ask("--question", GRASS.strip(), "--max-new-tokens", 60, "--stop", "yellow")
        self.assertNotIn("yellow", text)
        self.assertEqual(events[-1]["completed"].get("stop_string"), "yellow")

    def test_bad_requests_are_named_and_the_server_lives(self):
        cases = [
            (["--question", "hi", "--max-new-tokens", 0], "max_new_tokens"),
            (["--question", "hi", "--strategy", "long_heads:chunk_size=24"], "chunk_size"),
            (["--question", "hi", "--strategy", "lm_infinite:window=100000"], "window"),
            (["--question", "hi", "--temperature", -1], "temperature"),
            (["--question", "", "--max-new-tokens", 1], "empty"),
            (["--document", "no-such-document", "--question", "hi"], "no-such-document"),
        ]
        for args, word in cases:
            result = self.server.folio("ask", *args)
            self.assertNotEqual(result.returncode, 0, args)
            self.assertIn(word, result.stderr, args)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        self.assertEqual(self.server.folio("info").returncode, 0)

    def test_invalid_utf8_upload_is_refused_with_its_offset(self):
        path = pathlib.Path(self.directory.name) / "bad.txt"
        path.write_bytes(b"good text " * 10 + b"\xff\xfe" + b" more")
        result = self.server.folio("upload", path, "--id", "bad-text")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("100", result.stderr)
        self.server.folio("docs", "delete", "bad-text")

    def test_interrupt_cancels_on_the_server(self):
        before = self.kv_used_when_idle()
        process = self.server.start_folio("--json", "ask", "--question", "Once", "--max-new-tokens", 16000,
                                          "--strategy", "full", "--ignore-eos")
        self.addCleanup(process.kill)
        for line in process.stdout:
            if '"delta"' in line:
                break
        wait_for(lambda: self.kv_used() > before, "a running request holds pages")
        process.send_signal(signal.SIGINT)
        process.communicate()
        self.assertEqual(process.returncode, 130)
        wait_for(lambda: self.kv_used() == before, "the pages of a cancelled request are free")

    def test_killed_client_frees_its_pages_too(self):
        before = self.kv_used_when_idle()
        process = self.server.start_folio("--json", "ask", "--question", GRASS * 30, "--max-new-tokens", 16000,
                                          "--ignore-eos")
        self.addCleanup(process.kill)
        for line in process.stdout:
            if '"delta"' in line:
                break
        process.kill()
        process.communicate()
        wait_for(lambda: self.kv_used() == before, "the pages of a vanished client are free")

    def test_thirty_two_mixed_streams_answer_like_alone(self):
        result = subprocess.run(
            [str(BIN / "folio-loadtest"), "--server", self.server.address, "--concurrency", "32",
             "--num-requests", "96", "--strategies", "full:1,lm_infinite:1,long_heads:1",
             "--prompt-tokens", "30:0.6,600:0.4", "--output-tokens", "12:1,30:1", "--verify-greedy", "--seed", "3"],
            capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_load_with_cancellations_leaves_nothing_behind(self):
        before = self.kv_used_when_idle()
        result = subprocess.run(
            [str(BIN / "folio-loadtest"), "--server", self.server.address, "--concurrency", "16",
             "--num-requests", "300", "--strategies", "full:1,lm_infinite:1,long_heads:1",
             "--prompt-tokens", "40:0.5,1500:0.5", "--output-tokens", "30:1", "--cancel-fraction", "0.7"],
            capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        wait_for(lambda: self.kv_used() == before, "all pages are free after cancellations")

    def test_metrics_tell_what_happened(self):
        self.ask("--question", "hello", "--max-new-tokens", 3, "--strategy", "full")
        for name in ('folio_generation_tokens_total{strategy="full"}', "folio_process_resident_memory_bytes",
                     "folio_engine_steps_total", 'folio_prompt_tokens_total{source="computed"}'):
            wait_for(lambda: self.server.metrics().get(name, 0) > 0, name)


class LifeCycle(unittest.TestCase):
    def run_server(self, model):
        return subprocess.run([str(BIN / "folio-server"), f"--model={model}", "--listen=127.0.0.1:0",
                               "--metrics-listen=off", "--kv-bytes=100000000"],
                              capture_output=True, text=True, timeout=300)

    def test_bad_models_end_with_one_clear_line(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory) / "model"

            def broken(change):
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(MODEL, copy)
                change()
                result = self.run_server(copy)
                self.assertEqual(result.returncode, 3, result.stderr)
                lines = [l for l in result.stderr.splitlines() if l.startswith("folio-server: ")]
                self.assertEqual(len(lines), 1, result.stderr)
                return lines[0]

            weights = copy / "model.safetensors"
            self.assertIn("tokenizer.model", broken(lambda: (copy / "tokenizer.model").unlink()))
            self.assertIn("config.json", broken(lambda: (copy / "config.json").unlink()))
            self.assertIn("safetensors", broken(lambda: weights.write_bytes(weights.read_bytes()[:-100])))
            self.assertIn("safetensors", broken(lambda: weights.write_bytes(struct.pack("<Q", 1 << 60))))

            def nonsense():
                config = json.loads((copy / "config.json").read_text())
                config["num_attention_heads"] = -3
                (copy / "config.json").write_text(json.dumps(config))
            self.assertIn("num_attention_heads", broken(nonsense))

    def test_more_memory_than_the_process_may_have_is_refused_with_the_arithmetic(self):
        limit = 4 << 30
        result = subprocess.run(
            [str(BIN / "folio-server"), f"--model={MODEL}", "--listen=127.0.0.1:0", "--metrics-listen=off",
             "--kv-bytes=8GiB"],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
            capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 4, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("folio-server: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn("KV pages 8.00 GiB", lines[0])
        self.assertIn("of RLIMIT_AS; lower --kv-bytes by", lines[0])

    def test_a_large_model_without_the_memory_for_it_is_refused_with_one_line(self):
        for limit, reason in ((200 << 20, "RLIMIT_AS"), (320 << 20, "RLIMIT_AS"), (3 << 30, "weights 12.55 GiB")):
            with self.subTest(limit=limit):
                result = subprocess.run(
                    [str(BIN / "folio-server"), "--model=synthetic:llama-2-7b", "--listen=127.0.0.1:0",
                     "--metrics-listen=off"],
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
                    capture_output=True, text=True, timeout=300)
                self.assertEqual(result.returncode, 4, result.stderr)
                lines = [line for line in result.stderr.splitlines() if line.startswith("folio-server: ")]
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertIn(reason, lines[0])

    def test_termination_lets_a_stream_end_and_exits_with_0(self):
        with RunningServer(BIN, MODEL, "--kv-bytes=200000000", "--drain-seconds=300") as server:
            process = server.start_folio("--json", "ask", "--question", "Once", "--max-new-tokens", 1500,
                                         "--strategy", "lm_infinite", "--ignore-eos")
            for line in process.stdout:
                if '"delta"' in line:
                    break
            # Read while the server ends: a client that is not read would lose what it has buffered.
            with concurrent.futures.ThreadPoolExecutor(1) as reader:
                rest = reader.submit(lambda: process.communicate()[0])
                self.assertEqual(server.stop(), 0)
            self.assertIn('"completed"', rest.result())

    def test_calls_and_termination_do_not_wait_for_who_reads_the_log(self):
        reader, writer = os.pipe()

        def fill():
            os.set_blocking(writer, False)
            with self.assertRaises(BlockingIOError):
                while True:
                    os.write(writer, b"." * select.PIPE_BUF)
            os.set_blocking(writer, True)

        fill()
        server = RunningServer(BIN, MODEL, "--kv-bytes=200000000", start_seconds=60, stdout=writer)
        self.addCleanup(lambda: server.process.kill())
        with server:
            wait_for(lambda: server.folio("ask", "--question", "hi", "--max-new-tokens", 1).returncode == 0, "an answer")
            wait_for(lambda: server.metrics()["folio_log_lines_dropped_total"] > 3, "lines are counted", 10)
            os.read(reader, 1 << 20)
            self.assertEqual(server.folio("info").returncode, 0)
            lines = []
            wait_for(lambda: lines.append(os.read(reader, 1 << 20).decode()) or "GetServerInfo" in lines[-1], "a line")
            self.assertRegex("".join(lines), r"[0-9]+ log lines were dropped")
            fill()
            self.assertEqual(server.stop(60), 0)

    def test_queue_limit_refuses_with_a_retry_delay(self):
        with RunningServer(BIN, MODEL, "--kv-bytes=200000000", "--max-running-requests=1",
                           "--max-queued-requests=1") as server:
            flags = ["--json", "ask", "--question", "Once", "--max-new-tokens", 16000, "--ignore-eos",
                     "--strategy", "lm_infinite"]

            def load():
                metrics = server.metrics()
                return metrics["folio_num_requests_running"], metrics["folio_num_requests_waiting"]

            running = [server.start_folio(*flags)]
            wait_for(lambda: load() == (1, 0), "one request runs")
            running.append(server.start_folio(*flags))
            wait_for(lambda: load() == (1, 1), "another one waits")
            refused = server.folio("--json", "ask", "--question", "Me too")
            error = json.loads(refused.stdout.splitlines()[-1])["error"]
            self.assertEqual(error["code"], "RESOURCE_EXHAUSTED")
            self.assertGreater(error["retry_delay_seconds"], 0)
            for process in running:
                process.send_signal(signal.SIGINT)
                process.communicate()


if __name__ == "__main__":
    unittest.main()
