"""Makes small random Llama checkpoints and their logits from Hugging Face transformers.

Each case becomes <out>/<case>/ with config.json, model.safetensors (or two shards and an index)
and golden.safetensors: `tokens` I32 [n], `logits` F32 [n, vocab]. The forward pass is always
float32 with eager attention; bf16 and fp16 cases store rounded weights and compute with those
rounded values upcast to float32.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaForCausalLM
from transformers.utils import logging

NUM_TOKENS = 97

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 80,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 56,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}

# The three models that strategies.py reuses have a vocabulary as wide as the hidden state, which
# shows every direction of it and keeps their many golden files small.
CASES = {
    "mha": {"vocab_size": 32},
    "gqa": {"vocab_size": 32, "num_key_value_heads": 2},
    "gqa8": {
        "vocab_size": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 16,
    },
    "tied": {"tie_word_embeddings": True},
    "bias": {"attention_bias": True, "num_key_value_heads": 2},
    "rope_theta_500000": {"rope_theta": 500000.0},
    "head_dim": {"head_dim": 12, "num_key_value_heads": 2},
    "odd_sizes": {
        "vocab_size": 131,
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 16,
        "intermediate_size": 88,
    },
    "bf16": {"torch_dtype": "bfloat16"},
    "fp16": {"torch_dtype": "float16"},
    "sharded": {},
    # Five times what transformers initialises with; the others are harsher than any trained model.
    "bf16_init": {"torch_dtype": "bfloat16", "num_key_value_heads": 2, "initializer_range": 0.1},
}

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def random_weights(config: dict, seed: int) -> dict[str, torch.Tensor]:
    """Weights of a fresh model, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    model = LlamaForCausalLM(AutoConfig.for_model(**config))
    weights = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        value = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1 + 0.2 * value
        elif name.endswith(".bias"):
            value = 0.5 * value
        else:
            value = value * config.get("initializer_range", 1.4 / math.sqrt(config["hidden_size"]))
        weights[name] = value.to(DTYPES[config["torch_dtype"]]).contiguous()
    return weights


def write_checkpoint(directory: Path, config: dict, weights: dict, num_shards: int) -> None:
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    metadata = {"format": "pt"}
    if num_shards == 1:
        save_file(weights, directory / "model.safetensors", metadata)
        return
    names = list(weights)
    per_shard = math.ceil(len(names) / num_shards)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = names[shard * per_shard : (shard + 1) * per_shard]
        save_file({name: weights[name] for name in part}, directory / file, metadata)
        weight_map.update({name: file for name in part})
    total = sum(value.nbytes for value in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def reference_logits(directory: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of the checkpoint as transformers reads it back from disk."""
    model, info = LlamaForCausalLM.from_pretrained(
        directory,
        torch_dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        return model.eval()(tokens[None].long(), use_cache=False).logits[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the cases, e.g. tests/golden/llama")
    out = parser.parse_args().out
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    for case_idx, (case, changes) in enumerate(CASES.items()):
        directory = out / case
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        config = BASE | changes
        weights = random_weights(config, seed=1000 + case_idx)
        write_checkpoint(directory, config, weights, num_shards=2 if case == "sharded" else 1)

        generator = torch.Generator().manual_seed(2000 + case_idx)
        tokens = torch.randint(config["vocab_size"], (NUM_TOKENS,), generator=generator).int()
        logits = reference_logits(directory, tokens).contiguous()
        save_file({"tokens": tokens, "logits": logits}, directory / "golden.safetensors")
        print(f"{case:18} logits {tuple(logits.shape)} std {logits.std():.2f} "
              f"max {logits.abs().max():.2f}")


if __name__ == "__main__":
    main()
