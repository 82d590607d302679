"""Random CoCA checkpoints, <golden>/coca/<case>/{config.json, model.safetensors}.

Tensor names are those of the authors' models (their code: model/llama, model/gpt_neox).
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

COMMON = {"vocab_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "max_position_embeddings": 512, "torch_dtype": "float32", "tie_word_embeddings": False,
          "bos_token_id": 1, "eos_token_id": 2}
LLAMA = COMMON | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 56, "num_key_value_heads": 2, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "hidden_act": "silu"}
NEOX = COMMON | {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 64,
    "intermediate_size": 56, "rotary_pct": 1.0, "rotary_emb_base": 10000, "hidden_act": "gelu",
    "layer_norm_eps": 1e-5, "use_parallel_residual": True}

CASES = {
    "llama_raw": LLAMA | {"coca_q": "raw"},
    "llama_norm": LLAMA | {"coca_q": "norm"},
    "neox_raw": NEOX | {"coca_q": "raw"},
    # Five pairs per head: half of a head is an odd number.
    "neox_mean": NEOX | {"coca_q": "mean", "hidden_size": 40},
}


def tensor_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    hidden, ffn, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    llama = config["model_type"] == "llama"
    kv = hidden * config.get("num_key_value_heads", 4) // 4
    shapes = {}

    def linear(name, out, inputs):
        shapes[f"{name}.weight"] = (out, inputs)
        if not llama:
            shapes[f"{name}.bias"] = (out,)

    def norm(name):
        shapes[f"{name}.weight"] = (hidden,)
        if not llama:
            shapes[f"{name}.bias"] = (hidden,)

    for layer in range(config["num_hidden_layers"]):
        name = f"{'model' if llama else 'gpt_neox'}.layers.{layer}"
        norm(f"{name}.input_layernorm")
        norm(f"{name}.post_attention_layernorm")
        if llama:
            for part, out in (("q", hidden), ("t", kv), ("v", kv), ("o", hidden)):
                linear(f"{name}.self_attn.{part}_proj", out, hidden)
            linear(f"{name}.mlp.gate_proj", ffn, hidden)
            linear(f"{name}.mlp.up_proj", ffn, hidden)
            linear(f"{name}.mlp.down_proj", hidden, ffn)
        else:
            linear(f"{name}.attention.query_key_value", 3 * hidden, hidden)
            linear(f"{name}.attention.dense", hidden, hidden)
            linear(f"{name}.mlp.dense_h_to_4h", ffn, hidden)
            linear(f"{name}.mlp.dense_4h_to_h", hidden, ffn)
    norm("model.norm" if llama else "gpt_neox.final_layer_norm")
    shapes["model.embed_tokens.weight" if llama else "gpt_neox.embed_in.weight"] = (vocab, hidden)
    shapes["lm_head.weight" if llama else "embed_out.weight"] = (vocab, hidden)
    return shapes


def write_coca_models(golden: Path) -> None:
    for case_idx, (case, config) in enumerate(CASES.items()):
        directory = golden / "coca" / case
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        generator = np.random.Generator(np.random.PCG64(5000 + case_idx))
        weights = {}
        for name, shape in tensor_shapes(config).items():
            value = generator.normal(size=shape)
            if len(shape) == 2:
                value *= 1.4 / math.sqrt(shape[1])
            elif name.endswith(".bias"):
                value *= 0.3
            else:
                value = 1 + 0.2 * value
            weights[name] = value.astype(np.float32)
        save_file(weights, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
