#!/usr/bin/env python3
"""The figures of transformers that folio-device-bench is compared with: a Llama-2-7B shape with random bf16 weights on one GPU,
SDPA attention and a static cache.

    tools/transformers_bench.py --figures device-bench.json --out transformers.json

Prints tokens per second of decode at 4k, the seconds of a 32k prefill with 128 tokens after it, and Folio's ratios to both."""
import argparse
import json
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache


def make_model(device, scale):
    config = LlamaConfig(vocab_size=32000, hidden_size=4096 // scale, intermediate_size=11008 // scale,
                         num_hidden_layers=32 // scale, num_attention_heads=32 // scale, num_key_value_heads=32 // scale,
                         head_dim=128, max_position_embeddings=65536, attn_implementation="sdpa")
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    return model


class Stream:
    def __init__(self, model, room):
        self.model = model
        self.cache = StaticCache(config=model.config, max_batch_size=1, max_cache_len=room, device=model.device,
                                 dtype=torch.bfloat16)
        self.length = 0

    def step(self, count):
        """Runs `count` tokens and returns the seconds they took."""
        ids = torch.full((1, count), 3, device=self.model.device)
        positions = torch.arange(self.length, self.length + count, device=self.model.device)
        start = time.perf_counter()
        logits = self.model(ids, past_key_values=self.cache, cache_position=positions, logits_to_keep=1).logits
        int(logits[0, -1].argmax())
        self.length += count
        return time.perf_counter() - start


def decode_tokens_per_s(model, depth):
    stream = Stream(model, depth + 64)
    stream.step(depth)
    seconds = [stream.step(1) for _ in range(33)][3:]
    return 1 / statistics.median(seconds)


def prefill_seconds(model, length, pieces=16):
    stream = Stream(model, length + 128)
    start = time.perf_counter()
    for _ in range(pieces):
        stream.step(length // pieces)
    for _ in range(128):
        stream.step(1)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figures", help="what folio-device-bench --json wrote")
    parser.add_argument("--out", default="transformers.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="what model and lengths are divided by, for a try")
    args = parser.parse_args()
    with torch.inference_mode():
        model = make_model(args.device, args.scale)
        decode_tokens_per_s(model, 4096 // args.scale)  # warm
        rows = {"transformers: decode, 1 stream at 4k": decode_tokens_per_s(model, 4096 // args.scale),
                "transformers: prefill of 32k and 128 tokens": prefill_seconds(model, 32768 // args.scale)}
    ours = {}
    if args.figures:
        for line in open(args.figures):
            figure = json.loads(line)
            ours[figure["name"]] = figure["value"]
        decode = ours.get("decode, 1 stream at 4k, full")
        prefill = ours.get("prefill of 32k and 128 tokens, long_heads")
        if decode:
            rows["decode, 1 stream at 4k: times as fast (goal 3)"] = decode / rows["transformers: decode, 1 stream at 4k"]
        if prefill:
            rows["prefill of 32k and 128 tokens, LongHeads: times as fast (goal 5)"] = (
                rows["transformers: prefill of 32k and 128 tokens"] / prefill)
    for name, value in rows.items():
        print(f"{name:66s} {value:10.4g}")
    with open(args.out, "w") as out:
        json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
