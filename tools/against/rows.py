"""What ./dev bench --against measures: the rows, with the flags of folio-bench, the formats in which a peer may run them
(its best one counts), and the goals."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """What limits a row, with the metrics of folio-bench."""
    name: str
    share: str
    metric: str
    unit: str


READ = Ceiling("the read", "bandwidth_share", "read_gb_per_s", "GB/s read")
FP32 = Ceiling("fp32", "peak_share", "fp32_peak_gflop_per_s", "GFLOP/s fp32")
# Only where folio-bench finds one.
MATRIX_UNIT = Ceiling("the matrix unit", "matrix_unit_share", "matrix_unit_gflop_per_s", "GFLOP/s matrix unit")
STRATEGIES = {"full": "full attention", "long_heads": "LongHeads", "lm_infinite": "LM-Infinite",
              "long_heads:scorer=mean_key": "LongHeads by mean keys",
              "long_heads:scorer=mean_key:share=group": "LongHeads, one choice for the heads of a group",
              "full,long_heads,lm_infinite": "three strategies"}
DEPTHS = {2_048: "2k", 8_192: "8k", 32_768: "32k", 131_072: "128k", 1_048_576: "a million"}
SPEEDS = {"decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}
PREFILL_TOKENS = 512
DECODE_TOKENS = 32


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    what: str  # decode or prefill
    weights: str  # --weight_dtype of folio-bench
    formats: tuple  # of the peers' weights, as the files of gguf_models.py have them
    depth: int = 0
    depths: tuple = ()  # of the streams of a batch, in turn
    strategy: str = "full"
    cache: str = "auto"  # --kv_dtype of folio-bench
    caches: tuple = ("f16",)  # of the peers' keys and values
    ratio: float = None  # goal: to the better peer
    share: float = None  # goal: of the ceiling
    streams: int = 1  # that decode in one batch; then `depth` is the mean
    with_matrix_unit: dict = None  # what is different on a machine that has one
    ceiling: Ceiling = None

    def __post_init__(self):
        if self.ceiling is None:
            object.__setattr__(self, "ceiling", READ if self.what == "decode" else FP32)

    def title(self):
        """In words."""
        parts = [f"{self.streams} streams" if self.streams > 1 else "decode" if self.what == "decode" else f"prompt of {PREFILL_TOKENS}"]
        if self.depth > 0:
            parts[0] += f" behind {DEPTHS.get(self.depth, f'{self.depth:,}')}"
            parts.append(STRATEGIES[self.strategy])
        parts.append(f"{self.weights} weights")
        if self.cache != "auto":
            parts.append(f"{self.cache} cache")
        return ", ".join(parts)

    def on_machine_of(self, sample):
        """The row with the goals of the machine that gave a sample of folio-bench."""
        if self.with_matrix_unit and MATRIX_UNIT.metric in sample:
            return dataclasses.replace(self, ceiling=MATRIX_UNIT, **self.with_matrix_unit)
        return self

    def folio_flags(self):
        tokens = (["--prefill_tokens=0", f"--decode_tokens={DECODE_TOKENS}", "--rounds=3"] if self.what == "decode" else
                  [f"--prefill_tokens={PREFILL_TOKENS}", "--decode_tokens=1", "--rounds=1"])
        if self.streams > 1:
            tokens += [f"--streams={self.streams}"]
        depths = ",".join(map(str, self.depths or [self.depth]))
        return [f"--strategies={self.strategy}", f"--depths={depths}", f"--weight_dtype={self.weights}",
                f"--kv_dtype={self.cache}", *tokens]

    def case(self):
        case = {"row": self.name, "strategy": self.strategy, "depth": self.depth, "weights": self.weights}
        if self.streams > 1:
            case["streams"] = self.streams
        return case if self.cache == "auto" else {**case, "kv": self.cache}

    def goal(self):
        parts = []
        if self.ratio is not None:
            parts.append(f"{self.ratio:g} x the peer")
        if self.share is not None:
            parts.append(f"{self.share:g} of {self.ceiling.name}")
        return ", ".join(parts) or "-"


WIDE = ("bf16", "f16")
BOTH_CACHES = ("f16", "q8_0")
ROWS = [
    Row("decode-bf16", "decode", "bf16", WIDE, ratio=1.0, share=0.95),
    Row("decode-int8", "decode", "int8", ("q8_0",), ratio=1.1, share=0.90),
    Row("decode-int4", "decode", "int4", ("q4_0",), ratio=1.15, share=0.85),
    Row("decode-2k", "decode", "bf16", WIDE, depth=2_048),
    Row("decode-8k", "decode", "bf16", WIDE, depth=8_192),
    Row("decode-32k", "decode", "bf16", WIDE, depth=32_768, ratio=2.2, share=0.85),
    Row("decode-32k-int8", "decode", "int4", ("q4_0",), depth=32_768, cache="int8", caches=("q8_0",), ratio=2),
    Row("long-heads-32k", "decode", "int4", ("q4_0",), depth=32_768, strategy="long_heads", cache="int8", caches=BOTH_CACHES,
        ratio=3.5),
    Row("long-heads-128k", "decode", "int4", ("q4_0",), depth=131_072, strategy="long_heads", cache="int8", caches=BOTH_CACHES,
        ratio=10),
    # A peer's streams have one depth and share their prompt, which spares it the reading of many.
    Row("batch-8", "decode", "int4", ("q4_0",), depth=2_560, depths=(1_024, 4_096), strategy="full,long_heads,lm_infinite", streams=8,
        cache="int8", caches=BOTH_CACHES, ratio=2),
    Row("batch-32", "decode", "int4", ("q4_0",), depth=2_560, depths=(1_024, 4_096), strategy="full,long_heads,lm_infinite", streams=32,
        cache="int8", caches=BOTH_CACHES, ratio=2),
    # Sixteen bits of a million tokens would be 24 GB.
    Row("long-heads-1m", "decode", "int4", ("q4_0",), depth=1_048_576, strategy="long_heads", cache="int8", caches=BOTH_CACHES,
        ratio=60),
    # Summaries that the eight heads of a group share.
    Row("mean-key-1m", "decode", "int4", ("q4_0",), depth=1_048_576, strategy="long_heads:scorer=mean_key", cache="int8",
        caches=BOTH_CACHES, ratio=60),
    # And one choice for all of them.
    *(Row(f"one-choice-{name}", "decode", "int4", ("q4_0",), depth=depth, strategy="long_heads:scorer=mean_key:share=group",
          cache="int8", caches=BOTH_CACHES, ratio=ratio)
      for name, depth, ratio in (("32k", 32_768, 3.5), ("128k", 131_072, 10), ("1m", 1_048_576, 60))),
    Row("prefill-bf16", "prefill", "bf16", WIDE, share=0.70, with_matrix_unit={"share": 0.50, "ratio": 5}),
    Row("prefill-int8", "prefill", "int8", ("q8_0",), ratio=3),
    Row("prefill-int4", "prefill", "int4", ("q4_0",), ratio=3),
    Row("prefill-32k", "prefill", "bf16", WIDE, depth=32_768, ratio=8, with_matrix_unit={"share": 0.35}),
    Row("prefill-32k-long-heads", "prefill", "bf16", WIDE, depth=32_768, strategy="long_heads", with_matrix_unit={"share": 0.25}),
    Row("prefill-32k-lm-infinite", "prefill", "bf16", WIDE, depth=32_768, strategy="lm_infinite", with_matrix_unit={"share": 0.40}),
]
