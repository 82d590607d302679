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
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16,
         "use_sliding_window": False}
PHI3 = LLAMA_LIKE | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
                     "pad_token_id": None}
# With 97 tokens the long list counts where the model was pre-trained on 64, the short one on 128.
PHI3_LISTS = {
    "short_factor": [1.0, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0],
    "long_factor": [1.0, 1.1, 1.4, 2.1, 3.5, 6.0, 9.0, 14.0],
}
MIXTRAL = LLAMA_LIKE | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 40,
    "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None,
    "rope_theta": 1000000.0,
}

# Caps and windows so small that they matter for 97 tokens of a small model.
GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 56, "max_position_embeddings": 512, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 12,
    "sliding_window": 24, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0,
}
GEMMA3 = GEMMA2 | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 4,
    "query_pre_attn_scalar": 16, "sliding_window_pattern": 3, "rope_theta": 1000000.0,
    "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0},
    "attn_logit_softcapping": None, "final_logit_softcapping": None,
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
    "mixed_bf16": LLAMA_LIKE | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                                "use_sliding_window": False},
    "mixed_halves": LLAMA_LIKE | {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                                  "sliding_window": None},
    "qwen3": LLAMA_LIKE | QWEN3,
    "qwen3_tied_bias": LLAMA_LIKE | QWEN3 | {"tie_word_embeddings": True, "attention_bias": True},
    "phi3": PHI3,
    "phi3_long": PHI3 | {"hidden_size": 64, "original_max_position_embeddings": 64,
                         "rope_scaling": {"type": "longrope"} | PHI3_LISTS},
    "phi3_short": PHI3 | {"hidden_size": 64, "original_max_position_embeddings": 128,
                          "rope_scaling": {"type": "longrope"} | PHI3_LISTS},
    # As Phi-4-mini has it: a part of each head is rotated, and the head is the embedding.
    "phi3_partial_tied": PHI3 | {"hidden_size": 64, "partial_rotary_factor": 0.75,
                                 "tie_word_embeddings": True},
    "mixtral": MIXTRAL,
    "mixtral_3_of_4": MIXTRAL | {"num_hidden_layers": 1, "num_local_experts": 4,
                                 "num_experts_per_tok": 3, "sliding_window": 4096},
    "gemma2": GEMMA2,
    "gemma2_untied_layer_types": GEMMA2 | {
        "tie_word_embeddings": False, "attn_logit_softcapping": None,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
    "gemma3": GEMMA3,
}

# Dtypes of the tensors whose name has such a part, the first that fits; others are float32.
DTYPES = {
    "mixed_bf16": {"norm": torch.float32, ".weight": torch.bfloat16},
    "mixed_halves": {"layernorm": torch.float32, "self_attn": torch.float16,
                     "mlp": torch.bfloat16},
}


def random_weights(model, seed: int, norms_from_one: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in model.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 2:
            value = value * 1.4 / math.sqrt(parameter.shape[1])
        elif name.endswith(".bias"):
            value = 0.3 * value
        else:
            value = (0 if norms_from_one else 1) + 0.2 * value
        weights[name] = value.contiguous()
    return weights


def stored(case: str, name: str, value: torch.Tensor) -> torch.Tensor:
    """The tensor in the dtype that the file of a case has it in."""
    for part, dtype in DTYPES.get(case, {}).items():
        if part in name:
            return value.to(dtype)
    return value


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
        gemma = fields["model_type"].startswith("gemma")  # its norms multiply by 1 + weight
        weights = random_weights(model, seed=3000 + case_idx, norms_from_one=gemma)
        weights = {name: stored(case, name, value) for name, value in weights.items()}
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
