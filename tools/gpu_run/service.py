"""Stages that measure the service, and what it is compared with."""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from running_server import RunningServer
from stage import NO_DEVICE

QUESTION = "What is the pass key? The pass key is"
KEY = "71854"
MODEL_7B = "synthetic:llama-2-7b"
LOAD_KEYS = ["completed", "failed", "duration", "output_throughput", "total_token_throughput", "median_ttft_ms",
             "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "max_concurrent_requests", "invariants"]


@contextlib.contextmanager
def serving(stage, name, model, *flags):
    """A server of the stage's device, and a line that says after how many seconds it answers; None if it does not."""
    start = time.monotonic()
    server = RunningServer(stage.bin, model, f"--device={stage.device}", *flags, start_seconds=stage.left())
    try:
        server.__enter__()
    except RuntimeError as error:
        stage.record(f"{name}/start", "no gpu" if NO_DEVICE in str(error) else "failed", error=str(error)[-1000:])
        yield None
    else:
        stage.record(f"{name}/start", "ok", seconds=round(time.monotonic() - start, 2))
        yield server
        stage.record(f"{name}/end", "failed" if server.process.poll() is not None else "ok", code=server.process.poll())
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.stop(timeout=15)
        server.process.kill()
        stage.log(name).write_text(server.log())
        server.directory.cleanup()


def load(stage, server):
    report = stage.log("loadtest").with_suffix(".json")
    lengths = ["64:0.5,200:0.5", "16"] if stage.rehearse else ["1024:0.5,8192:0.5", "128"]
    outcome = stage.run("loadtest", [
        stage.bin / "folio-loadtest", "--server", server.address, "--concurrency", "16", "--num-requests", "64", "--warmup", "5",
        "--strategies", "full:1,lm_infinite:1,long_heads:1", "--prompt-tokens", lengths[0], "--output-tokens", lengths[1],
        "--sampled-fraction", "0.3", "--output", report])
    values = json.loads(report.read_text()) if report.exists() else {}
    stage.record("loadtest", outcome.status(), **{key: values[key] for key in LOAD_KEYS if key in values}, **outcome.values())


def document(bundle):
    """The bundled text with a pass key at 40 %, as in the demo."""
    verses = (bundle / "models/texts/ezekiel.txt").read_text().splitlines()[:500]
    verses.insert(int(0.4 * len(verses)), f"The pass key is {KEY}. Remember it. {KEY} is the pass key.")
    return " ".join(verses)


def ask(stage, server, strategy, path):
    start = time.monotonic()
    done = server.folio("ask", "--document", path, "--question", QUESTION, "--strategy", strategy, "--max-new-tokens", 8,
                        timeout=stage.left())
    stage.record(f"ask/{strategy}", "ok" if done.returncode == 0 else "failed", seconds=round(time.monotonic() - start, 2),
                 answer=done.stdout.strip(), right=KEY in done.stdout, **({"error": done.stderr[-500:]} if done.returncode else {}))


def summary_of(line):
    """The cells of the summary that `folio eval` ends with."""
    with contextlib.suppress(json.JSONDecodeError):
        if line.startswith("{") and "summary" in (values := json.loads(line)):
            return {"cells": values["summary"].get("cells")}
    return {}


def server(stage):
    """folio-server on the device: seconds until it is ready, streams of clients, questions about a long document"""
    tiny = stage.bundle / "models/folio-tiny"
    with serving(stage, "server-7b", tiny if stage.rehearse else MODEL_7B) as running:
        if running:
            load(stage, running)
    with serving(stage, "server-tiny", tiny) as running, tempfile.TemporaryDirectory() as directory:
        if not running:
            return
        path = pathlib.Path(directory, "document.txt")
        path.write_text(document(stage.bundle))
        for strategy in ("long_heads", "lm_infinite", "full"):
            ask(stage, running, strategy, path)
        tokens, trials = (1024, 2) if stage.rehearse else (8192, 20)
        found = {}
        outcome = stage.run("passkey", [stage.bin / "folio", "--server", running.address, "--json", "eval", "passkey", "--tokens",
                                        tokens, "--trials", trials, "--strategies", "long_heads", "lm_infinite", "full"],
                            on_line=lambda line: found.update(summary_of(line)))
        stage.record("passkey", outcome.status(), **found, **outcome.values())


def transformers(stage):
    """transformers on the same shape, where Python has it and torch"""
    probe = stage.run("probe", [sys.executable, "-c",
                                "import torch, transformers; print(torch.cuda.is_available(), torch.__version__, transformers.__version__)"],
                      seconds=90)
    if probe.code != 0:
        return stage.record("transformers", "skipped", error="this Python has no torch and transformers")
    if not probe.text().startswith("True"):
        return stage.record("transformers", "no gpu", error="torch sees no GPU")
    seen = []
    outcome = stage.run("transformers", [sys.executable, stage.bundle / "transformers_bench.py"], on_line=stage.forward(seen=seen))
    return stage.record("transformers", outcome.status(), versions=probe.text().split()[1:], figures=len(seen), **outcome.values())
