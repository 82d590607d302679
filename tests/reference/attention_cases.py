"""Writes <golden>/attention/{cases.json, <model>.safetensors}: logits of every legal pair of
attention strategy and position scheme, prompt and answer; and <golden>/coca, random CoCA models.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from attention import CHUNK, PROMPT, Attention
from coca_models import write_coca_models
from decoders import (
    CocaLlama,
    CocaNeox,
    LlamaDecoder,
    MixtralDecoder,
    MptDecoder,
    Phi3Decoder,
    Qwen3Decoder,
)
from safetensors.numpy import save_file
from schemes import LENGTH
from strategies import MIN_MARGIN

NUM_TOKENS = 203
# Of the prompt, every 9th row is kept, and the rows of the answer.
KEPT_ROWS = [*range(0, PROMPT, 9), *range(PROMPT - 1, NUM_TOKENS)]

SCHEMES = [
    ("plain", {}),
    ("linear", {"factor": 3.0}),
    ("ntk", {"factor": 3.0}),
    ("dynamic_ntk", {"factor": 2.0, "length": NUM_TOKENS}),
    ("dynamic_ntk", {"factor": 1.5, "exact": 1}),
    ("ntk_by_parts", {"factor": 4.0, "beta_fast": 8.0}),
    ("yarn", {"factor": 4.0, "beta_fast": 8.0}),
    ("llama3", {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("abf", {"base": 500000.0}),
    ("entropy_abf", {"base": 500000.0, "base_length": 24.0, "exempt_layers": 1}),
]
DYNAMIC = {"dynamic_ntk"}
LONG_HEADS = {"chunk_size": CHUNK, "attention_length": LENGTH}
TOP = {"num_sinks": 4, "window": 32, "distance_limit": 32, "top_tokens": 5, "top_distance": 16,
       "top_from_layer": 1}

# (strategy, parameters, schemes that are legal, None: all of SCHEMES)
ROWS = [
    ("full", {}, None),
    ("sliding_window", {"window": 40}, lambda name, p: name not in DYNAMIC),
    ("streaming", {"num_sinks": 5, "recent_tokens": 30}, lambda name, p: name not in DYNAMIC),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 40},
     lambda name, p: name in ("plain", "entropy_abf")),
    # Under scaled positions window and limit are the length that the scheme reaches.
    ("lm_infinite", {"num_sinks": 5, "window": 192, "distance_limit": 192},
     lambda name, p: p.get("factor") == 3.0),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 2**31},
     lambda name, p: name == "plain"),
    ("lm_infinite", TOP, lambda name, p: name in ("plain", "entropy_abf")),
    ("lm_infinite", TOP | {"top_all_rows": 1, "top_tokens": 9},
     lambda name, p: name == "plain"),
    ("lm_infinite", TOP | {"top_all_or_none": 1, "top_tokens": 150},
     lambda name, p: name == "plain"),
    ("long_heads", LONG_HEADS, lambda name, p: not p.get("exact")),
    ("long_heads", LONG_HEADS | {"scale_decode": 1},
     lambda name, p: name in ("ntk", "yarn")),
    ("long_heads", LONG_HEADS | {"begin_selective_length": 176},
     lambda name, p: name == "linear"),
    *(("long_heads", LONG_HEADS | extra, lambda name, p: name == "plain") for extra in (
        {"scorer": "mean_key"}, {"scorer": "quest"}, {"scorer": "representatives"},
        {"share": "group"}, {"share": "layer"}, {"share": "layers"},
        {"scorer": "quest", "share": "group"}, {"order": "last"}, {"drop_first_chunk": 1},
        {"prompt_skips_self": 1}, {"decode_boundary": 1},
        {"prompt_skips_self": 1, "decode_boundary": 1})),
    ("rerope", {"window": 24}, lambda name, p: name in ("plain", "entropy_abf")),
    ("rerope", {"window": 24, "scale_logits": 1}, lambda name, p: name == "plain"),
    *(("long_heads", LONG_HEADS | {"scorer": scorer, "share": share}, lambda name, p: name == "plain")
      for scorer, share in (("mean_key", "group"), ("mean_key", "layer"), ("quest", "layer"))),
]


ALIBI_ROWS = [
    ("full", {}), ("sliding_window", {"window": 40}),
    ("streaming", {"num_sinks": 5, "recent_tokens": 30}),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 40}),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 2**31}),
    ("lm_infinite", TOP), ("long_heads", LONG_HEADS),
]


# CoCA, strict; of these, slack knows the first only.
COCA_ROWS = [
    ("full", {}, lambda name, p: name != "entropy_abf"),
    ("sliding_window", {"window": 40}, lambda name, p: name in ("plain", "linear")),
    ("streaming", {"num_sinks": 5, "recent_tokens": 30}, lambda name, p: name == "plain"),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 40},
     lambda name, p: name == "plain"),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 2**31},
     lambda name, p: name == "plain"),
    ("lm_infinite", TOP, lambda name, p: name == "plain"),
]


def alibi_cases():
    for strategy, params in ALIBI_ROWS:
        yield strategy, params, "plain", {}


# Families that differ from Llama elsewhere than in positions: one way to see keys of each kind.
FAMILY_ROWS = [
    ("full", {}, lambda name, p: name == "plain"),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 40},
     lambda name, p: name == "plain"),
    ("long_heads", LONG_HEADS, lambda name, p: name == "plain"),
]


def pairs(rows):
    for strategy, params, legal in rows:
        for scheme, scheme_params in SCHEMES:
            if legal is None or legal(scheme, scheme_params):
                yield strategy, params, scheme, scheme_params


# Models that share their cases, the cases, and what computes them.
GROUPS = [
    (["llama/mha", "llama/gqa"], lambda: pairs(ROWS), LlamaDecoder),
    (["families/mpt"], alibi_cases, MptDecoder),
    (["coca/llama_raw"], lambda: pairs(COCA_ROWS[:1]), CocaLlama),
    (["coca/llama_norm"], lambda: pairs(COCA_ROWS), CocaLlama),
    (["coca/neox_raw"], lambda: pairs(COCA_ROWS[:1]), CocaNeox),
    (["coca/neox_mean"], lambda: pairs(COCA_ROWS), CocaNeox),
    (["families/qwen3"], lambda: pairs(FAMILY_ROWS), Qwen3Decoder),
    (["families/phi3"], lambda: pairs(FAMILY_ROWS), Phi3Decoder),
    (["families/mixtral"], lambda: pairs(FAMILY_ROWS), MixtralDecoder),
]


def label(strategy, params, scheme, scheme_params) -> str:
    parts = [strategy, *(f"{k}{v}" for k, v in params.items()), scheme,
             *(f"{k}{v:g}" for k, v in scheme_params.items())]
    return ".".join(parts)


def compute(model, case, seed: int):
    while True:
        generator = np.random.Generator(np.random.PCG64(seed))
        tokens = generator.integers(model.config["vocab_size"], size=NUM_TOKENS, dtype=np.int32)
        base = model.config.get("rope_theta", 10000.0)
        attention = Attention(*case, base, model.head_dim)
        logits = model.run(tokens, attention)
        if min(attention.margins, default=1.0) >= MIN_MARGIN:
            return tokens, logits
        seed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="folder that holds llama/, e.g. tests/golden")
    golden = parser.parse_args().golden
    write_coca_models(golden)
    out = golden / "attention"
    out.mkdir(exist_ok=True)
    listed = []
    first_seed = 1_000_000
    for paths, of_group, decoder in GROUPS:
        group = list(of_group())
        for path in paths:
            model = decoder(golden / path)
            tensors = {"rows": np.array(KEPT_ROWS, dtype=np.int32)}
            for case_idx, case in enumerate(group):
                tokens, logits = compute(model, case, first_seed + 1000 * case_idx)
                tensors[f"{label(*case)}/tokens"] = tokens
                tensors[f"{label(*case)}/logits"] = logits[KEPT_ROWS].astype(np.float32)
                print(path, label(*case), flush=True)
            save_file(tensors, out / f"{path.split('/')[1]}.safetensors")
            first_seed += 1_000_000
        for case in group:
            strategy, params, scheme, scheme_params = case
            listed.append({"name": label(*case), "models": paths, "strategy": strategy,
                           "params": params, "position": scheme, "position_params": scheme_params})
    about = {"trained_length": LENGTH, "prompt_tokens": PROMPT, "cases": listed}
    (out / "cases.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
