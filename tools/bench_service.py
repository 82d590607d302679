"""What the service does with long documents, measured over gRPC with the bundled model: memory receipts, a short
request beside a long prefill, and the server's own cost per streamed token."""
import argparse
import json
import math
import os
import pathlib
import statistics
import tempfile
import time

from demo import FACT, KEY, MODEL, QUESTION, TEXT
from running_server import RunningServer

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 2**20


def document(num_tokens, characters_per_token, depth=0.4):
    """Verses of Ezekiel, again and again, the fact at `depth` of them."""
    verses = TEXT.read_text().splitlines()
    repeated, size = [], 0
    while size < num_tokens * characters_per_token:
        repeated.append(verses[len(repeated) % len(verses)])
        size += len(repeated[-1]) + 1
    repeated.insert(int(depth * len(repeated)), FACT)
    return " ".join(repeated)


def characters_per_token(server):
    text = TEXT.read_text()[:20000]
    answer = json.loads(server.folio("--json", "tokenize", text).stdout)
    return len(text) / len(answer["token_ids"])


def ask(server, *args):
    """The events of one question: accepted, the text, completed."""
    done = server.folio("--json", "ask", *args)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0:
        raise RuntimeError(done.stderr + done.stdout[-500:])
    text = "".join(e["delta"].get("text", "") for e in events if "delta" in e)
    return next(e["accepted"] for e in events if "accepted" in e), text, events[-1]["completed"]


def upload(server, path, strategy, *args):
    return server.folio("--json", "upload", path, "--id", f"{strategy}-{path.stem}", "--strategy", strategy, *args)


def receipt(args, strategy, num_tokens):
    with RunningServer(args.bin, MODEL, f"--kv-bytes={args.kv_bytes}") as server, \
            tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "document.txt"
        path.write_text(document(1.03 * num_tokens, characters_per_token(server)))
        start = time.monotonic()
        done = upload(server, path, strategy)
        seconds = time.monotonic() - start
        if done.returncode != 0:
            raise RuntimeError(done.stderr + done.stdout[-500:])
        accepted, text, completed = ask(server, "--document", f"{strategy}-document", "--question", QUESTION,
                                        "--strategy", strategy, "--max-new-tokens", "8")
        memory, timings = completed["memory"], completed["timings"]
        metrics = server.metrics()
        tokens = int(accepted["prompt_tokens"])
        print(f"{strategy:<12} {tokens:>9} tokens: read in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s), "
              f"question answered in {timings['time_to_first_token_seconds'] * 1000:.0f} ms to the first token, "
              f"answer {text.strip()[:12]!r} ({'right' if KEY in text else 'wrong'})")
        print(f"{'':<12} receipt {json.dumps(memory)}; resident memory of the server "
              f"{metrics['folio_process_resident_memory_bytes'] / MIB:.0f} MiB")


def short_beside_long(args):
    """Time and engine steps to the first token of short questions, alone and while a long document is read."""
    with RunningServer(args.bin, MODEL, f"--kv-bytes={args.kv_bytes}") as server, \
            tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "document.txt"
        path.write_text(document(args.beside_tokens, characters_per_token(server)))
        print(f"first token of a question of 10 tokens, {args.questions} questions one after the other")
        print(f"{'':<34} {'p50':>8} {'p90':>8} {'max':>8} ms {'steps of the engine: p50':>26} {'max':>5}")
        for name in ["alone", f"beside a prefill of {args.beside_tokens} tokens"]:
            if name != "alone":
                reader = server.start_folio("--json", "upload", path, "--strategy", "lm_infinite")
                while json.loads(reader.stdout.readline()).get("progress", {}).get("prefilled_tokens", 0) == 0:
                    pass
            times, steps = [], []
            for _ in range(args.questions):
                before = server.metrics()["folio_engine_steps_total"]
                completed = ask(server, "--question", QUESTION, "--strategy", "full", "--max-new-tokens", "1")[2]
                times.append(1000 * completed["timings"]["time_to_first_token_seconds"])
                steps.append(server.metrics()["folio_engine_steps_total"] - before)
            if name != "alone":
                if reader.poll() is not None:
                    raise RuntimeError("the long prefill ended before the questions; raise --beside-tokens")
                reader.kill()
                reader.wait()
            times.sort()
            print(f"{name:<34} {statistics.median(times):>8.1f} {times[int(0.9 * len(times))]:>8.1f} {times[-1]:>8.1f}"
                  f"    {statistics.median(steps):>26.0f} {max(steps):>5.0f}")


def server_cpu_seconds(pid):
    """CPU time of the threads that do not compute."""
    seconds = 0.0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        if name not in ("engine", "compute"):
            fields = rest.split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def cost_per_token(args):
    with RunningServer(args.bin, MODEL, f"--kv-bytes={args.kv_bytes}") as server:
        for streams in (1, 8):
            before, tokens = server_cpu_seconds(server.process.pid), 0
            answers = [server.start_folio("--json", "ask", "--question", f"{i}: In the beginning", "--strategy", "lm_infinite",
                                          "--max-new-tokens", args.answer_tokens, "--ignore-eos")
                       for i in range(streams)]
            for answer in answers:
                last = json.loads(answer.communicate()[0].splitlines()[-1])
                tokens += int(last["completed"]["usage"]["completion_tokens"])
            cost = server_cpu_seconds(server.process.pid) - before
            print(f"{streams} streams: {tokens} tokens, {1e6 * cost / tokens:.0f} us of server CPU per streamed token "
                  f"(threads other than the engine's)")


def score_long_text(args):
    """Inference.Score over Ezekiel again and again: resident memory and perplexity of each reading."""
    with RunningServer(args.bin, MODEL, f"--kv-bytes={args.kv_bytes}") as server:
        once = server.folio("--json", "score", TEXT, "--strategy", "lm_infinite").stdout.splitlines()[-1]
        copy_tokens = int(json.loads(once)["completed"]["num_tokens"]) - 1
        repeat = -(-args.score_tokens // copy_tokens)
        start = time.monotonic()
        scorer = server.start_folio("--json", "score", TEXT, "--strategy", "lm_infinite", "--repeat", repeat,
                                    "--bucket-tokens", copy_tokens)
        buckets, memory = [], []
        for line in scorer.stdout:
            event = json.loads(line)
            if "bucket" in event:
                buckets.append(event["bucket"])
                memory.append(server.metrics()["folio_process_resident_memory_bytes"] / MIB)
            completed = event.get("completed")
        scorer.wait()
        seconds = time.monotonic() - start
        perplexity = [math.exp(-b["log_likelihood"] / int(b["num_tokens"])) for b in buckets]
        tokens = int(completed["num_tokens"])
        print(f"score lm_infinite {tokens} tokens in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s), {len(buckets)} readings "
              f"of {copy_tokens} tokens; KV {int(completed['memory']['device_kv_bytes_peak']) / MIB:.1f} MiB")
        last = -2 if int(buckets[-1]["num_tokens"]) < copy_tokens // 2 else -1
        print(f"perplexity of the first reading {perplexity[0]:.4f}, of the last {perplexity[last]:.4f}, most {max(perplexity[:last]):.4f}")
        # The second bucket ends after 100,000 tokens.
        print(f"resident memory of the server after the second reading {memory[1]:.1f} MiB, most later {max(memory[1:]):.1f}, "
              f"least {min(memory[1:]):.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--kv-bytes", type=int, default=18_000_000_000)
    parser.add_argument("--beside-tokens", type=int, default=200_000)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--answer-tokens", type=int, default=3000)
    parser.add_argument("--receipts", default="lm_infinite:50000,lm_infinite:200000,long_heads:100000,long_heads:1000000")
    parser.add_argument("--score-tokens", type=int, default=10_000_000)
    parser.add_argument("--only-score", action="store_true")
    args = parser.parse_args()
    if args.only_score:
        return score_long_text(args)
    cost_per_token(args)
    short_beside_long(args)
    for item in args.receipts.split(","):
        strategy, num_tokens = item.split(":")
        receipt(args, strategy, int(num_tokens))
    score_long_text(args)


if __name__ == "__main__":
    main()
