"""GGUF files: blocks of every type that is read, and small random models with their logits.

Writes <golden>/gguf/blocks.safetensors: for each TYPE `TYPE.blocks` U8 [bytes] and `TYPE.values` F32, what gguf_blocks.py
makes of them (the gguf package agrees); and <golden>/gguf/<case>/model.gguf with golden.safetensors: `tokens` I32 [n],
`logits` F32 [n, vocab], and under its Hugging Face name every matrix of layer 0 as float32.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np
from gguf_blocks import TYPES, decode, random_blocks
from safetensors.numpy import save_file
from small_llama import Shape, logits, random_vectors

NUM_TOKENS = 24
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}

# Architecture, shape, the type of most matrices, and that of the embedding and the head.
CASES = {
    "f16": ("llama", Shape(), "F16", "F16"),
    "q8_0": ("llama", Shape(factors=[1.0, 1.5, 4.0, 8.0]), "Q8_0", "Q8_0"),
    "q4_0": ("qwen2", Shape(vocab=264, layers=1, tied=True, qkv_bias=True), "Q4_0", "Q8_0"),
    # Rows of Q4_K have a multiple of 256 numbers; converters take Q8_0 where they have not.
    "q4_k": ("llama", Shape(hidden=256, layers=1, heads=4, head_dim=16), "Q4_K", "Q6_K"),
}


def gguf_name(name: str) -> str:
    base, kind = name.rsplit(".", 1)
    if base.startswith("model.layers."):
        _, _, layer, inside = base.split(".", 3)
        return f"blk.{layer}.{NAMES[inside]}.{kind}"
    return f"{NAMES[base]}.{kind}"


def side_by_side(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """The rows of q and k as files of the architecture llama have them: pairs (m, m + head_dim / 2) beside each other."""
    heads = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return heads.swapaxes(1, 2).reshape(rows.shape)


def add_tokenizer(writer: gguf.GGUFWriter, arch: str, vocab: int) -> None:
    if arch == "llama":
        # Letters, and a few pieces of two.
        letters = [chr(ord("a") + i) for i in range(vocab - 3 - 4)]
        tokens = ["<unk>", "<s>", "</s>", "\u2581", *letters, "ab", "\u2581a", "cd"]
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * 3 + [-float(i) for i in range(len(tokens) - 3)])
        writer.add_token_types([2, 3, 3] + [1] * (len(tokens) - 3))
        ends = (1, 2)
    else:
        # GPT-2's characters for bytes, by value.
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in plain]
        of_byte = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
        tokens = [of_byte[b] for b in range(256)] + ["ab", "\u0120a", "cd", "<|end|>", "<|im_end|>", "<tool>", "x1", "x2"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_types([1] * 259 + [3, 3, 4] + [5, 5])
        writer.add_token_merges(["a b", "\u0120 a", "c d"])
        writer.add_add_bos_token(False)
        ends = (259, 260)
    writer.add_token_list(tokens)
    writer.add_bos_token_id(ends[0])
    writer.add_eos_token_id(ends[1])
    writer.add_chat_template("{{ messages[0].content }}")


def write_model(path: Path, arch: str, shape: Shape, tensors: dict) -> None:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(512)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    add_tokenizer(writer, arch, shape.vocab)
    for name, (kind, data) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_case(directory: Path, arch: str, shape: Shape, inner: str, outer: str, rng) -> None:
    weights = random_vectors(shape, rng)
    tensors = {}
    for name, value in weights.items():
        rotated = arch == "llama" and ("q_proj" in name or "k_proj" in name)
        tensors[gguf_name(name)] = ("F32", side_by_side(value, shape.head_dim) if rotated else value)
    for name, (rows, columns) in shape.matrices().items():
        kind = inner if name.startswith("model.layers.") else outer
        if columns % TYPES[kind][0] != 0:
            kind = "Q8_0"
        size = 2.0 / np.sqrt(columns)
        if kind == "F16":
            stored = (size * rng.standard_normal((rows, columns))).astype(np.float16)
            blocks = stored.view(np.uint8)
        else:
            stored = blocks = random_blocks(kind, rows, columns, rng, size)
        values = decode(kind, blocks)
        assert np.array_equal(values, gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[kind])), kind
        weights[name + ".weight"] = values
        rotated = arch == "llama" and ("q_proj" in name or "k_proj" in name)
        data = side_by_side(stored, shape.head_dim) if rotated else stored
        tensors[gguf_name(name + ".weight")] = (kind, data)
    if shape.factors is not None:
        tensors["rope_freqs.weight"] = ("F32", np.array(shape.factors, np.float32))
    directory.mkdir(parents=True, exist_ok=True)
    write_model(directory / "model.gguf", arch, shape, tensors)
    tokens = rng.integers(0, shape.vocab, NUM_TOKENS).astype(np.int32)
    golden = {"tokens": tokens, "logits": logits(shape, weights, tokens).astype(np.float32)}
    if directory.name in ("q8_0", "q4_0"):
        golden |= {f"model.layers.0.{name}.weight": weights[f"model.layers.0.{name}.weight"]
                   for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")}
    save_file(golden, directory / "golden.safetensors")
    print(f"gguf/{directory.name:6} logits std {golden['logits'].std():.2f} max {np.abs(golden['logits']).max():.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="tests/golden")
    out = parser.parse_args().golden / "gguf"
    rng = np.random.default_rng(7)
    blocks = {}
    for kind, (numbers, _, _) in TYPES.items():
        rows = random_blocks(kind, 1, 3 * max(numbers, 32), rng, 1.0)
        if kind == "F32":
            rows = rng.standard_normal((1, 96)).astype(np.float32).view(np.uint8)
        if kind == "BF16":
            rows = (rng.standard_normal((1, 96)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        values = decode(kind, rows)
        assert np.isfinite(values).all(), kind
        if kind not in ("F32", "F16"):
            assert np.array_equal(values, gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])), kind
        blocks |= {f"{kind}.blocks": rows.reshape(-1), f"{kind}.values": values.reshape(-1)}
    out.mkdir(parents=True, exist_ok=True)
    save_file(blocks, out / "blocks.safetensors")
    for i, (case, (arch, shape, inner, outer)) in enumerate(CASES.items()):
        make_case(out / case, arch, shape, inner, outer, np.random.default_rng(100 + i))


if __name__ == "__main__":
    main()
