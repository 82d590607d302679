"""Small random checkpoints of the families beside Llama, and their logits from transformers.

The layout of a case is that of hf_llama.py. The forward pass is float32 with eager attention.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from hf_llama import write_checkpoint
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

NUM_TOKENS = 97
COMMON = {"vocab_size": 48, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
LLAMA_LIKE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
    "max_position_embeddings": 512, "rotary_pct": 0.25, "rotary_emb_base": 10000,
    "hidden_act": "gelu", "layer_norm_eps": 1e-5, "use_parallel_residual": True,
    "tie_word_embeddings": False,
}
MPT = {
    "architectures": ["MptForCausalLM"], "model_type": "mpt", "d_model": 32, "n_heads": 4,
    "n_layers": 2, "expansion_ratio": 4, "max_seq_len": 512, "no_bias": True,
    "layer_norm_epsilon": 1e-5, "attn_config": {"alibi": True, "alibi_bias_max": 8},
}

CASES = {
    "mistral": LLAMA_LIKE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                             "head_dim": 16, "sliding_window": None},
    "qwen2": LLAMA_LIKE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                           "use_sliding_window": False, "rope_theta": 1000000.0},
    "gptj": {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_embd": 48,
             "n_head": 3, "n_layer": 2, "n_positions": 512, "rotary_dim": 8, "n_inner": None,
             "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
             "tie_word_embeddings": False},
    "neox": NEOX,
    "neox_sequential_full_rotary": NEOX | {"use_parallel_residual": False, "rotary_pct": 1.0},
    "mpt": MPT,
    # Not a power of two: the slopes are picked out of those of eight heads.
    "mpt_6_heads": MPT | {"d_model": 48, "n_heads": 6},
}


def random_weights(model, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in model.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 2:
            value = value * 1.4 / math.sqrt(parameter.shape[1])
        elif name.endswith(".bias"):
            value = 0.3 * value
        else:
            value = 1 + 0.2 * value
        weights[name] = value.contiguous()
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the cases, e.g. tests/golden/families")
    out = parser.parse_args().out
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for case_idx, (case, fields) in enumerate(CASES.items()):
        directory = out / case
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        fields = COMMON | fields
        config = AutoConfig.for_model(**json.loads(json.dumps(fields)))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        weights = random_weights(model, seed=3000 + case_idx)
        model.load_state_dict(weights, strict=False)
        model.tie_weights()
        write_checkpoint(directory, fields, weights, num_shards=1)
        generator = torch.Generator().manual_seed(4000 + case_idx)
        tokens = torch.randint(fields["vocab_size"], (NUM_TOKENS,), generator=generator).int()
        with torch.no_grad():
            logits = model(tokens[None].long(), use_cache=False).logits[0].contiguous()
        save_file({"tokens": tokens, "logits": logits}, directory / "golden.safetensors")
        print(f"{case:28} logits {tuple(logits.shape)} std {logits.std():.2f}")


if __name__ == "__main__":
    main()
