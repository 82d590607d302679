#!/usr/bin/env python3
"""Writes the seed corpus of the fuzz targets. usage: make_corpus.py [DIR]  (default: corpus)"""

import json
import pathlib
import struct
import sys

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
    for i, config in enumerate(TOKENIZER_CONFIGS):
        write("tokenizer_config", i, json.dumps(config).encode())


if __name__ == "__main__":
    main()
