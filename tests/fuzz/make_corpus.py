#!/usr/bin/env python3
"""Writes the seed corpus of the fuzz targets. usage: make_corpus.py [DIR]  (default: corpus)"""

import json
import pathlib
import struct
import sys

import rpc_corpus

ADAPTER = {
    "peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": True, "bias": "none", "use_dora": False,
    "target_modules": ["q_proj", "v_proj"], "rank_pattern": {"v_proj": 4}, "alpha_pattern": {"layers.0.self_attn.q_proj": 2.5},
    "layers_to_transform": [0, 1], "modules_to_save": None, "init_lora_weights": True,
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "attention_bias": False, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "bfloat16", "rope_scaling": None,
}

HEADERS = [
    ({}, 0),
    ({"__metadata__": {"format": "pt"},
      "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
      "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [8, 20]}}, 20),
    ({"none": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]},
      "one": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]}}, 2),
    ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}, 8),
]

SPLIT = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}|\s+(?!\S)"}, "behavior": "Isolated", "invert": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
TOKENIZERS = [
    {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, "pre_tokenizer": BYTE_LEVEL},
    {"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "ignore_merges": True},
     "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL]},
     "added_tokens": [{"id": 3, "content": "<s>", "special": True}],
     "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {}}],
                        "special_tokens": {"<s>": {"ids": [3]}}}},
]

TOKENIZER_CONFIGS = [
    {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "bos_token": {"content": "<s>"}, "eos_token": "</s>"},
    {"tokenizer_class": "GPT2Tokenizer", "eos_token": None},
]

# A stored document with a label and a rendition of one segment; the fuzz target mends the checksum.
def text(value):
    return struct.pack("<I", len(value)) + value


SEGMENT = struct.pack("<qBiiqq", 0, 0, 4, 1, 4096, 0) + bytes(32)
RENDITION = (struct.pack("<q", 1) + bytes(32) + text(b"full() plain()") + struct.pack("<qI", 10, 1) + SEGMENT)
FIELDS = (text(b"book") + text(b"name") + text(b"token") + text(b"full() plain()") + struct.pack("<QqqB", 1, 1, 2, 1)
          + struct.pack("<I", 1) + text(b"key") + text(b"value") + struct.pack("<qqB", 0, 0, 0)
          + bytes(32) + struct.pack("<q", 50) + struct.pack("<qqQ", 10, 100, 11) + struct.pack("<qqQ", 10, 60, 12))
MANIFESTS = [FIELDS + struct.pack("<I", 0), FIELDS + struct.pack("<I", 1) + RENDITION]

# Written by SegmentWriter and TokenLog: a segment of one page of 8 bytes, its index and footer, and the two logs of four
# tokens. In front of each what the fuzz target is to expect.
FOOTER = bytes.fromhex(
    "464f4c494f53454702000000000000000100000001000000080000000000000000000000000000000100000000000000000000000000000000000000000000"
    "000000000000000000f96ec208f4d46cd0e017a32c4e050864")
INDEX = bytes.fromhex("e113fc82894c8c8f")
TOKENS = bytes.fromhex(
    "0c000000030000000000000000000000010000000200000003000000e7d6d607d2b1c30c0400000001000000030000000000000001000000816cbf6ad12b"
    "91b0")
OFFSETS = bytes.fromhex(
    "030000000300000000000000000000000004064935d42bd69a7e9e010000000100000003000000000000000a4ef90204aa77683f")
FILES = [(b"\0\0", b"8 bytes." + bytes(4088) + INDEX + FOOTER), (b"\0\4", TOKENS),
         (b"\0\4", OFFSETS)]



def gguf(pairs, tensors, data_bytes):
    """A GGUF file; pairs of key and value, tensors of name, dims, type and offset."""
    def typed(value):
        if isinstance(value, bool):
            return struct.pack("<IB", 7, value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        if isinstance(value, float):
            return struct.pack("<If", 6, value)
        if isinstance(value, str):
            return struct.pack("<I", 8) + string(value)
        entries = [typed(entry) for entry in value]
        return struct.pack("<I", 9) + entries[0][:4] + struct.pack("<Q", len(entries)) + b"".join(e[4:] for e in entries)

    def string(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    file += b"".join(string(key) + typed(value) for key, value in pairs.items())
    for name, dims, kind, offset in tensors:
        file += string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return file + bytes(-len(file) % 32) + bytes(range(1, data_bytes + 1))


GGUF_MODEL = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 32,
              "llama.feed_forward_length": 64, "llama.context_length": 128, "llama.attention.head_count": 4,
              "llama.rope.freq_base": 10000.0, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2}
GGUF_TENSORS = [("token_embd.weight", [32, 2], 8, 0), ("rope_freqs.weight", [4], 0, 96)]
GGUFS = [
    (GGUF_MODEL | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
                   "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0], "tokenizer.ggml.token_type": [2, 3, 3, 1]},
     GGUF_TENSORS, 128),
    (GGUF_MODEL | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe",
                   "tokenizer.ggml.tokens": ["a", "b", "ab", "<s>"], "tokenizer.ggml.token_type": [1, 1, 1, 3],
                   "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.add_bos_token": True}, GGUF_TENSORS[:1], 96),
    ({"general.alignment": 64, "split.count": 2}, [], 0),
]

QUANTIZATIONS = [
    {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True, "checkpoint_format": "gptq_v2"},
    {"quant_method": "awq", "bits": 4, "group_size": -1, "version": "gemm", "zero_point": True},
    {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
    {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "g": {"weights": {"num_bits": 8, "type": "float", "block_structure": [128, 128]}}}},
]

TEXTS = [b"plain text", "é ▁ 😀 文".encode(), b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\x80\xff"]


def main():
    beside = pathlib.Path(__file__).parent / "corpus"
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else beside

    def write(subject, index, data):
        (root / subject).mkdir(parents=True, exist_ok=True)
        (root / subject / f"seed{index}").write_bytes(data)

    for i, (header, data_bytes) in enumerate(HEADERS):
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        write("safetensors_header", i, struct.pack("<H", data_bytes) + text)
        write("safetensors_file", i, struct.pack("<Q", len(text)) + text + bytes(data_bytes))
    for i, (pairs, tensors, data_bytes) in enumerate(GGUFS):
        write("gguf", i, gguf(pairs, tensors, data_bytes))
    for i, quantization in enumerate(QUANTIZATIONS):
        write("quantization_config", i, json.dumps({"quantization_config": quantization}).encode())
    write("adapter_config", 0, json.dumps(ADAPTER).encode())
    write("model_config", 0, json.dumps(CONFIG).encode())
    scaled = dict(CONFIG, rope_scaling={"rope_type": "default"}, eos_token_id=None, head_dim=None)
    write("model_config", 1, json.dumps(scaled).encode())
    shards = {"metadata": {"total_size": 8}, "weight_map": {
        "lm_head.weight": "model-00002-of-00002.safetensors",
        "model.norm.weight": "model-00001-of-00002.safetensors"}}
    write("shard_index", 0, json.dumps(shards).encode())
    write("shard_index", 1, json.dumps({"weight_map": {"x": "../x.safetensors"}}).encode())
    for i, text in enumerate(TEXTS):
        write("utf8", i, text)
        write("bpe", i, text + b" and  more\n'll 123")
    for i, tokenizer in enumerate(TOKENIZERS):
        write("tokenizer_json", i, json.dumps(tokenizer).encode())
    for i, name in enumerate(("llama2", "chatml", "zephyr")):
        config = pathlib.Path(__file__).parent.parent / "golden" / "chat" / name / "tokenizer_config.json"
        write("chat_template", i, json.loads(config.read_text())["chat_template"].encode())
    prompt_format = struct.pack("<I", 8) + b"chatml-0" + struct.pack("<q", 140)
    versions = [(1, fields) for fields in MANIFESTS] + [(2, fields + prompt_format) for fields in MANIFESTS]
    for i, (version, fields) in enumerate(versions):
        size = 16 + len(fields) + 8
        write("manifest", i, b"FOLIODOC" + struct.pack("<II", version, size) + fields + bytes(8))
    for i, (choice, content) in enumerate(FILES):
        write("segment", i, choice + content)
    for i, config in enumerate(TOKENIZER_CONFIGS):
        write("tokenizer_config", i, json.dumps(config).encode())
    (root / "rpc").mkdir(parents=True, exist_ok=True)
    for name, data in rpc_corpus.seeds():
        (root / "rpc" / name).write_bytes(data)


if __name__ == "__main__":
    main()
