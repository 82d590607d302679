#!/usr/bin/env python3
"""The figures of transformers that folio-device-bench is compared with: a Llama-2-7B shape with random bf16 weights on one GPU,
SDPA attention and a static cache. One JSON object per line, with the keys of folio-device-bench."""
import argparse
import inspect
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
        # What the cache of this version of transformers wants to be told.
        known = {"config": model.config, "max_batch_size": 1, "max_cache_len": room, "device": model.device,
                 "dtype": torch.bfloat16}
        wanted = inspect.signature(StaticCache.__init__).parameters
        self.cache = StaticCache(**{name: value for name, value in known.items() if name in wanted})
        self.takes_positions = "cache_position" in inspect.signature(model.forward).parameters
        self.length = 0

    def step(self, count):
        """Runs `count` tokens and returns the seconds they took."""
        ids = torch.full((1, count), 3, device=self.model.device)
        positions = torch.arange(self.length, self.length + count, device=self.model.device)
        where = {"cache_position": positions} if self.takes_positions else {"position_ids": positions[None]}
        start = time.perf_counter()
        logits = self.model(ids, past_key_values=self.cache, logits_to_keep=1, **where).logits
        int(logits[0, -1].argmax())
        self.length += count
        return time.perf_counter() - start


def decode(model, depth):
    stream = Stream(model, depth + 64)
    stream.step(depth)
    seconds = statistics.median([stream.step(1) for _ in range(33)][3:])
    return {"tokens_per_s": 1 / seconds, "step_seconds": seconds}


def prefill(model, length, pieces=16):
    stream = Stream(model, length + 128)
    seconds = sum(stream.step(length // pieces) for _ in range(pieces))
    return {"tokens_per_s": length / seconds, "seconds": seconds,
            "seconds_with_128_tokens": seconds + sum(stream.step(1) for _ in range(128))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="what model and lengths are divided by, for a try")
    args = parser.parse_args()
    with torch.inference_mode():
        model = make_model(args.device, args.scale)
        decode(model, 512 // args.scale)  # warm
        for name, measure in (("decode/1x4096", lambda: decode(model, 4096 // args.scale)),
                              ("prefill/32768", lambda: prefill(model, 32768 // args.scale))):
            print(json.dumps({"name": f"transformers/{name}", "status": "ok", **measure()}), flush=True)


if __name__ == "__main__":
    main()
