"""The peers' llama-bench: which there are, and tokens per second of a row in one of the formats in which they may run it.

A peer reads a prompt of the whole depth before it decodes there, which takes it many minutes at 32k. So its time of a token
at more than DIRECT tokens is put together: that of the whole model at depth 0, and what attention adds in a model of the
same shape with few layers, times the layers. Beyond MEASURED that grows on with its slope between SLOPE_FROM and MEASURED.
A prompt behind a depth likewise: attention adds to each of its tokens as much per token before it as to those of whole prompts
of SLOPE_FROM and MEASURED tokens, which see half of them on average."""
import dataclasses
import json
import pathlib
import statistics
import subprocess
import tempfile

import gguf_models
from rows import DECODE_TOKENS, PREFILL_TOKENS

DIRECT, SLOPE_FROM, MEASURED = 2_048, 4_096, 16_384
FEW_LAYERS_FORMAT = "q4_0"  # its attention is that of all formats, beside the least weights
FEW_LAYERS_TOKENS = 64


class PeerFailed(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way in which a peer may run a row."""
    format: str
    cache: str
    flags: tuple = ()

    def __str__(self):
        cache = "" if self.cache == "f16" else f", cache {self.cache}"
        return " ".join([self.format, *self.flags]) + cache


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str  # of its folder, too
    depth_flag: str  # -d DEPTH -n TOKENS, or -gp DEPTH,TOKENS
    flags_of_integers: tuple = ((),)  # each a variant of rows with integer weights
    batch_flags: tuple = ()  # of llama-batched-bench

    def program(self, directory, name="llama-bench"):
        return pathlib.Path(directory) / self.name / name

    def variants(self, row):
        return [Variant(form, cache, flags) for form in row.formats for cache in row.caches
                for flags in (self.flags_of_integers if form.startswith("q") else ((),))]

    def tokens_flags(self, depth, tokens):
        if depth == 0:
            return ["-p", "0", "-n", str(tokens)]
        if self.depth_flag == "-gp":
            return ["-p", "0", "-n", "0", "-gp", f"{depth},{tokens}"]
        return ["-p", "0", "-n", str(tokens), "-d", str(depth)]


# ik_llama.cpp interleaves the rows of integer matrices while it loads them only if it is told to.
# llama.cpp gives each stream room for the prompt that they share unless it is told to share that, too.
PEERS = [Peer("llama.cpp", "-d", batch_flags=("-kvu",)), Peer("ik_llama.cpp", "-gp", ((), ("-rtr", "1")))]


def found(directory):
    """(the peers whose program is there, what to say of the others)"""
    there = [peer for peer in PEERS if peer.program(directory).is_file()]
    return there, [f"{peer.program(directory)} is not there: measured without {peer.name}" for peer in PEERS if peer not in there]


def seconds_per_token(output, tokens):
    """Of what llama-bench -o json printed for one test: the median of its repetitions."""
    try:
        tests = json.loads(output)
        if len(tests) != 1:
            raise PeerFailed(f"it reports {len(tests)} tests, one was asked for")
        seconds = statistics.median(tests[0]["samples_ns"]) / 1e9 / tokens
        if not seconds > 0:
            raise PeerFailed("a test took no time")
        return seconds, {key: tests[0][key] for key in ("build_commit", "build_number", "cpu_info") if key in tests[0]}
    except (ValueError, KeyError, TypeError) as error:
        raise PeerFailed(f"its output is not that of llama-bench -o json: {type(error).__name__}: {error}") from error


def batch_tokens_per_s(output, streams):
    """Of the table that llama-batched-bench prints, ik_llama.cpp's as errors: | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | ..."""
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) >= 8 and cells[2] == str(streams):
            return float(cells[7])
    raise PeerFailed(f"its output has no line of {streams} streams")


def ran(command, cwd=None):
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    except OSError as error:
        raise PeerFailed(f"{command[0]} does not run: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        raise PeerFailed(f"exit status {done.returncode}, it said: {said}")
    return done


class LlamaBench:
    """One peer's program. Within a round nothing is measured twice; `new_round` forgets."""

    def __init__(self, peer, directory, threads, direct=DIRECT):
        self.peer, self.directory, self.threads, self.direct = peer, pathlib.Path(directory).resolve(), threads, direct
        self.build = {}
        self._seconds = {}

    def new_round(self):
        self._seconds = {}

    def tokens_per_s(self, row, variant):
        if row.what == "prefill":
            return 1 / self._prefill(row, variant)
        if row.streams > 1:
            return self._batch(row, variant)
        if row.depth <= self.direct:
            return 1 / self._decode(gguf_models.TINYLLAMA, variant, row.depth, DECODE_TOKENS)
        few = gguf_models.few_layers(gguf_models.TINYLLAMA)
        attention = self._attention_seconds(few, Variant(FEW_LAYERS_FORMAT, variant.cache), row.depth)
        whole = self._decode(gguf_models.TINYLLAMA, variant, 0, DECODE_TOKENS)
        return 1 / (whole + attention * gguf_models.TINYLLAMA.layers / few.layers)

    def _prefill(self, row, variant):
        def whole_prompt(shape, variant, tokens):
            return self._measure(shape, variant, ["-p", str(tokens), "-n", "0"], tokens, 1)
        seconds = whole_prompt(gguf_models.TINYLLAMA, variant, PREFILL_TOKENS)
        if row.depth == 0:
            return seconds
        few, attention = gguf_models.few_layers(gguf_models.TINYLLAMA), Variant(FEW_LAYERS_FORMAT, variant.cache)
        longer = whole_prompt(few, attention, MEASURED) - whole_prompt(few, attention, SLOPE_FROM)
        per_token_before = 2 * longer / (MEASURED - SLOPE_FROM)
        return seconds + per_token_before * row.depth * gguf_models.TINYLLAMA.layers / few.layers

    def _attention_seconds(self, few, variant, depth):
        """What a token takes longer at `depth` than at 0."""
        def at(n):
            return self._decode(few, variant, n, FEW_LAYERS_TOKENS)
        if depth <= MEASURED:
            return at(depth) - at(0)
        slope = (at(MEASURED) - at(SLOPE_FROM)) / (MEASURED - SLOPE_FROM)
        return at(MEASURED) - at(0) + slope * (depth - MEASURED)

    def _decode(self, shape, variant, depth, tokens):
        return self._measure(shape, variant, self.peer.tokens_flags(depth, tokens), tokens, 3 if depth == 0 else 1)

    def _batch(self, row, variant):
        """Tokens per second of all streams, by llama-batched-bench."""
        model = gguf_models.path_of(self.directory, gguf_models.TINYLLAMA, variant.format)
        repacked = ["-rtr"] if "-rtr" in variant.flags else []
        command = [self.peer.program(self.directory, "llama-batched-bench"), "-m", model, "-t", self.threads, "-fa", "on",
                   "-ctk", variant.cache, "-ctv", variant.cache, "-c", row.depth + row.streams * DECODE_TOKENS,
                   "-npp", row.depth, "-ntg", DECODE_TOKENS, "-npl", row.streams, "-pps", *self.peer.batch_flags, *repacked]
        with tempfile.TemporaryDirectory(prefix="folio-peer-") as scratch:  # it leaves its log where it runs
            done = ran([str(part) for part in command], cwd=scratch)
        return batch_tokens_per_s(done.stdout + done.stderr, row.streams)

    def _measure(self, shape, variant, flags, tokens, repetitions):
        model = gguf_models.path_of(self.directory, shape, variant.format)
        command = [self.peer.program(self.directory), "-m", model, "-t", self.threads, "-fa", "1", "-ctk", variant.cache,
                   "-ctv", variant.cache, "-r", repetitions, "-o", "json", *flags, *variant.flags]
        command = tuple(map(str, command))
        if command not in self._seconds:
            self._seconds[command], self.build = seconds_per_token(ran(command).stdout, tokens)
        return self._seconds[command]
