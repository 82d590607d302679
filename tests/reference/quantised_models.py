"""Small random Hugging Face directories whose matrices are GPTQ, AWQ or fp8, and their logits.

Writes <golden>/quantised/<case>/: config.json, model.safetensors and golden.safetensors as in gguf_models.py; and
<golden>/quantised/fp8_values.safetensors: `values` F32 [256] of every 8-bit float (NaN as zero).
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np
from quantised_linears import awq, e4m3, fp8, gptq
from safetensors.numpy import save_file
from small_llama import Shape, logits, random_vectors

NUM_TOKENS = 24
DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.int32): "I32"}

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}
CASES = {
    "gptq": GPTQ,
    "gptq_row": GPTQ | {"group_size": -1},
    "gptq_act_order": GPTQ | {"group_size": 16, "sym": False, "desc_act": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    "fp8_block": FP8 | {"weight_block_size": [16, 24]},
    "fp8_tensor": FP8,
    "fp8_channel": COMPRESSED,
}


def matrix(case: str, config: dict, name: str, outputs: int, inputs: int, rng) -> tuple[dict, np.ndarray]:
    """Tensors of the file, as (dtype, array), and float32 weights."""
    if case.startswith("gptq"):
        group = inputs if config["group_size"] < 0 else config["group_size"]
        tensors, weights = gptq(name, outputs, inputs, group, config["sym"], config["desc_act"], rng)
    elif case == "awq":
        tensors, weights = awq(name, outputs, inputs, config["group_size"], rng)
    else:
        block = {"fp8_block": (16, 24), "fp8_tensor": (outputs, inputs), "fp8_channel": (1, inputs)}[case]
        bits, scales, weights = fp8(outputs, inputs, block, rng)
        key = "weight_scale_inv" if case == "fp8_block" else "weight_scale"
        scales = scales.reshape(()) if case == "fp8_tensor" else scales
        return {f"{name}.weight": ("F8_E4M3", bits), f"{name}.{key}": ("F32", scales)}, weights
    return {key: (DTYPES[value.dtype], value) for key, value in tensors.items()}, weights


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """By hand, as numpy has no 8-bit floats."""
    header, at = {}, 0
    for name, (dtype, value) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(value).tobytes() for _, value in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_case(directory: Path, case: str, quantization: dict, rng) -> None:
    shape = Shape(layers=1, ffn=64)
    weights = random_vectors(shape, rng)
    tensors = {name: ("F32", value) for name, value in weights.items()}
    for name, (outputs, inputs) in shape.matrices().items():
        if name.startswith("model.layers."):
            parts, weights[name + ".weight"] = matrix(case, quantization, name, outputs, inputs, rng)
            tensors |= parts
        else:
            value = (2 / np.sqrt(inputs) * rng.standard_normal((outputs, inputs))).astype(np.float16)
            tensors[name + ".weight"] = ("F16", value)
            weights[name + ".weight"] = value.astype(np.float32)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", tensors)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab,
        "hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": 512, "rope_theta": shape.theta, "rms_norm_eps": shape.eps, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "quantization_config": quantization,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokens = rng.integers(0, shape.vocab, NUM_TOKENS).astype(np.int32)
    golden = {"tokens": tokens, "logits": logits(shape, weights, tokens).astype(np.float32)}
    golden |= {f"model.layers.0.{name}.weight": weights[f"model.layers.0.{name}.weight"]
               for name in ("self_attn.q_proj", "mlp.down_proj")}
    save_file(golden, directory / "golden.safetensors")
    print(f"quantised/{case:15} logits std {golden['logits'].std():.2f} max {np.abs(golden['logits']).max():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="tests/golden")
    out = parser.parse_args().golden / "quantised"
    for i, (case, quantization) in enumerate(CASES.items()):
        make_case(out / case, case, quantization, np.random.default_rng(200 + i))
    save_file({"values": np.nan_to_num(e4m3(np.arange(256).astype(np.uint8)))}, out / "fp8_values.safetensors")


if __name__ == "__main__":
    main()
