"""Rotary tables of Hugging Face transformers for every type of rope_scaling.

Writes <golden>/rope/tables.json: per case the fields of a config.json, the length of the text, and
the frequencies and the attention factor that modeling_rope_utils computes for them.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONG = {"short_factor": [1.0 + 0.1 * m for m in range(32)],
        "long_factor": [1.0 + 0.5 * m for m in range(32)]}

# (name, rope_scaling, other fields, length of the text or None)
CASES = [
    ("default", None, {}, None),
    ("linear", {"rope_type": "linear", "factor": 4.0}, {}, None),
    ("linear_legacy_name", {"type": "linear", "factor": 2.5}, {}, None),
    ("dynamic_within", {"rope_type": "dynamic", "factor": 2.0}, {}, 3000),
    ("dynamic_8192", {"rope_type": "dynamic", "factor": 2.0}, {}, 8192),
    ("dynamic_factor_1", {"rope_type": "dynamic", "factor": 1.0}, {}, 16384),
    ("yarn", {"rope_type": "yarn", "factor": 4.0}, {}, None),
    ("yarn_original", {"rope_type": "yarn", "factor": 8.0,
                       "original_max_position_embeddings": 4096},
     {"max_position_embeddings": 32768}, None),
    ("yarn_betas", {"rope_type": "yarn", "factor": 16.0, "beta_fast": 20.0, "beta_slow": 2.0,
                    "attention_factor": 1.25}, {"rope_theta": 500000.0}, None),
    ("llama3", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
     {"rope_theta": 500000.0, "max_position_embeddings": 131072}, None),
    ("longrope_short", {"rope_type": "longrope"} | LONG,
     {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}, 4000),
    ("longrope_long", {"rope_type": "longrope"} | LONG,
     {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}, 4097),
]
# A head of 64 elements for the lists of longrope, of 128 as in Llama-2 otherwise.
BASE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100,
        "hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 4096, "rope_theta": 10000.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="tests/golden")
    out = parser.parse_args().golden / "rope"
    out.mkdir(exist_ok=True)
    tables = []
    for name, scaling, other, length in CASES:
        fields = BASE | other
        if scaling:
            fields["rope_scaling"] = scaling
        if scaling and scaling.get("rope_type") == "longrope":
            fields["num_attention_heads"] = 8
        config = LlamaConfig(**json.loads(json.dumps(fields)))
        kind = "default"
        if scaling:
            kind = scaling.get("rope_type") or scaling["type"]
        if kind == "default":
            d = config.head_dim
            inverse = 1.0 / (config.rope_theta ** (torch.arange(0, d, 2).float() / d))
            factor = 1.0
        else:
            inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        tables.append({"name": name, "config": fields, "length": length or 0,
                       "theta": [float(x) for x in inverse], "attention_factor": float(factor)})
        print(name, len(tables[-1]["theta"]), factor)
    (out / "tables.json").write_text(json.dumps(tables) + "\n")


if __name__ == "__main__":
    main()
