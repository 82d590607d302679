"""Measures a model directory: passkey retrieval and perplexity under full attention, LM-Infinite and LongHeads.

usage: evaluate.py MODEL_DIR HELD_OUT.txt... [--lengths 1 2 4] [--trials 20] [--methods longheads]
Prints Markdown tables. An independent check of the server, in fp32.
"""
import argparse
import json
import os
import pathlib
import random
import re
import time

import sentencepiece
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import tasks
from model import Llama, chunk_representations, rope_table, rotate

START_TOKENS = 10
CHUNK, CHUNKS = 16, 16
BLOCK = 128
MASKED = float("-inf")


class Methods:
    """Attention over a whole text: un-rotated q, k, v [H, T, D] -> [H, T, D]."""

    def __init__(self, c):
        self.dim, self.base, self.window = c["head_dim"], c["rope_theta"], c["max_position_embeddings"]

    def table(self, positions):
        return rope_table(positions, self.dim, self.base)

    def turn(self, x, positions):
        """Rotates x [..., D] by positions of shape x.shape[:-1], or broadcastable to it."""
        cos, sin = self.table(positions.reshape(-1))
        shape = (*positions.shape, self.dim)
        return rotate(x, (cos.view(shape), sin.view(shape)))

    def full(self, q, k, v):
        table = self.table(torch.arange(q.shape[1]))
        return F.scaled_dot_product_attention(rotate(q, table)[None], rotate(k, table)[None], v[None],
                                              is_causal=True)[0]

    def lm_infinite(self, q, k, v):
        """The last `window` tokens at their true distance, the start tokens at distance `window`."""
        length, window, scale = q.shape[1], self.window, self.dim ** -0.5
        table = self.table(torch.arange(length))
        near_q, near_k = rotate(q, table), rotate(k, table)
        far_q = self.turn(q, torch.tensor([window]))
        blocks = []
        for begin in range(0, length, window):
            end, low = min(length, begin + window), max(0, begin - window)
            distance = torch.arange(begin, end)[:, None] - torch.arange(low, end)[None]
            near = near_q[:, begin:end] @ near_k[:, low:end].transpose(1, 2) * scale
            near = near.masked_fill((distance < 0) | (distance >= window), MASKED)
            start_distance = torch.arange(begin, end)[:, None] - torch.arange(START_TOKENS)[None]
            far = far_q[:, begin:end] @ k[:, :START_TOKENS].transpose(1, 2) * scale
            far = far.masked_fill(start_distance[:, :far.shape[-1]] < window, MASKED)
            weights = torch.softmax(torch.cat([far, near], -1), -1)
            split = far.shape[-1]
            blocks.append(weights[..., :split] @ v[:, :split] + weights[..., split:] @ v[:, low:end])
        return torch.cat(blocks, 1)

    def longheads(self, q, k, v):
        """Per head and query: the first chunk, the best-scored ones, the previous and the own one, moved together."""
        heads, length, dim = q.shape
        dense = min(length, CHUNK * CHUNKS)
        blocks = [self.full(q[:, :dense], k[:, :dense], v[:, :dense])]
        whole = length // CHUNK
        stored = slice(0, whole * CHUNK)
        representations = chunk_representations(q[None, :, stored], k[None, :, stored], v[None, :, stored],
                                                CHUNK, self.base)[0]
        pad = -length % CHUNK
        split = lambda x: F.pad(x, (0, 0, 0, pad)).view(heads, -1, CHUNK, dim)
        keys = split(rotate(k, self.table(torch.arange(length) % CHUNK)))
        values = split(v)
        head = torch.arange(heads)[:, None, None]
        slot = torch.arange(CHUNKS)
        for begin in range(dense, length, BLOCK):
            token = torch.arange(begin, min(length, begin + BLOCK))
            own, offset = token // CHUNK, token % CHUNK
            query = q[:, token]
            scores = query @ representations.transpose(1, 2)
            index = torch.arange(whole)
            scores = scores.masked_fill((index < 1) | (index[None] > own[:, None] - 2), MASKED)
            # Equal scores go to the smaller index.
            best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :CHUNKS - 3].sort(-1).values
            fixed = lambda x: x.expand(heads, -1)[..., None]
            chosen = torch.cat([fixed(torch.zeros_like(own)), best, fixed(own - 1), fixed(own)], -1)
            angles = (CHUNKS - 1 - slot) * CHUNK + offset[:, None]
            turned = self.turn(query[:, :, None].expand(-1, -1, CHUNKS, -1), angles)
            logits = (keys[head, chosen] @ turned[..., None])[..., 0] * dim ** -0.5
            logits[:, :, -1].masked_fill_(torch.arange(CHUNK)[None] > offset[:, None], MASKED)
            weights = torch.softmax(logits.flatten(2), -1)
            gathered = values[head, chosen].flatten(2, 3)
            blocks.append((weights[:, :, None] @ gathered)[:, :, 0])
        return torch.cat(blocks, 1)


class Evaluation:
    def __init__(self, directory, seed):
        with open(os.path.join(directory, "config.json")) as file:
            self.config = json.load(file)
        state = load_file(os.path.join(directory, "model.safetensors"))
        self.model = Llama(self.config).eval()
        self.model.load_state_dict({name.removeprefix("model."): value for name, value in state.items()})
        self.tokenizer = sentencepiece.SentencePieceProcessor(
            model_file=os.path.join(directory, "tokenizer.model"))
        self.methods = Methods(self.config)
        self.random = random.Random(seed)

    def sentences(self, text):
        """Tokens of each sentence, as `folio eval` cuts them."""
        return self.tokenizer.encode(re.split(r"(?<=[.!?]) ", re.sub(r"\s+", " ", text)))

    @torch.no_grad()
    def logits(self, tokens, method, last):
        """Logits [last, V] of the last tokens."""
        attend = getattr(self.methods, method)
        x = self.model.embed_tokens(torch.tensor(tokens))
        for layer in self.model.layers:
            q, k, v = layer.self_attn.project(layer.input_layernorm(x)[None])
            out = attend(q[0], k[0], v[0]).transpose(0, 1).reshape(x.shape[0], -1)
            x = x + layer.self_attn.o_proj(out)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return F.linear(self.model.norm(x[-last:]), self.model.embed_tokens.weight)

    def filler(self, count, source):
        """Whole sentences of `source`, from anywhere on, of at most `count` tokens."""
        at = self.random.randrange(len(source))
        sentences, total = [], 0
        while total + len(source[at % len(source)]) <= count:
            sentences.append(source[at % len(source)])
            total += len(sentences[-1])
            at += 1
        return sentences

    def passkey(self, length, source, depth, in_window):
        """(prompt, answer), together `length` tokens or a little less; with `in_window` the depth is one of the last window."""
        encode = self.tokenizer.encode
        key = str(self.random.randint(10000, 99999))
        needle, question = encode(tasks.needle(tasks.NAMES[0], key)), encode(tasks.question(tasks.NAMES[0]))
        answer = encode(f"is {key}")[len(encode("is")):]
        sentences = self.filler(length - 1 - len(needle + question + answer), source)
        behind = (1 - depth) * sum(map(len, sentences))
        if in_window:
            behind = min(behind, (1 - depth) * (self.methods.window - len(needle + question + answer)))
        at = len(sentences)
        while at > 0 and behind >= len(sentences[at - 1]):
            at -= 1
            behind -= len(sentences[at])
        body = sentences[:at] + [needle] + sentences[at:]
        return [tasks.BOS] + [token for sentence in body for token in sentence] + question, answer

    def passkey_accuracy(self, length, source, method, trials, in_window=False):
        """Percent of trials in which greedy decoding begins with all the digits, at evenly spaced depths."""
        right = 0
        for trial in range(trials):
            prompt, answer = self.passkey(length, source, (trial + 0.5) / trials, in_window)
            # Fed with the answer, each of its tokens must be the most likely one: the same as greedy decoding.
            logits = self.logits(prompt + answer[:-1], method, len(answer))
            right += logits.argmax(-1).tolist() == answer
        return 100 * right / trials

    def perplexity(self, length, source, method, tokens, tail):
        """(over whole stretches, over the last `tail` tokens of each) of `tokens` in all."""
        stream = [token for sentence in source for token in sentence]
        count = max(1, tokens // length)
        losses = []
        for index in range(count):
            begin = (len(stream) - length) * index // max(1, count - 1)
            text = [tasks.BOS] + stream[begin:begin + length]
            logits = self.logits(text[:-1], method, length)
            losses.append(F.cross_entropy(logits, torch.tensor(text[1:]), reduction="none"))
        losses = torch.stack(losses)
        return losses.mean().exp().item(), losses[:, -tail:].mean().exp().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="in training lengths")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--methods", nargs="+", default=["full", "lm_infinite", "longheads"])
    parser.add_argument("--in-window", action="store_true", help="only needles in the last window")
    parser.add_argument("--perplexity-tokens", type=int, default=8192, help="per length; 0: no perplexity")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    evaluation = Evaluation(args.model, args.seed)
    sources = {path.stem: evaluation.sentences(path.read_text()) for path in args.texts}
    unit = evaluation.methods.window
    columns = " | ".join(f"{n}x ({n * unit})" for n in args.lengths)
    rule = "|---" * len(args.lengths) + "|"
    start = time.time()

    def table(cell):
        print(f"\n| method | text | {columns} |\n|---|---{rule}")
        for method in args.methods:
            for name, source in sources.items():
                print(f"| {method} | {name} | ", end="", flush=True)
                print(" | ".join(cell(n * unit, source, method) for n in args.lengths), "|", flush=True)

    print(f"Pass key accuracy in percent, {args.trials} trials each, seed {args.seed}"
          + (", needle in the last window" if args.in_window else ""))
    table(lambda length, source, method:
          f"{evaluation.passkey_accuracy(length, source, method, args.trials, args.in_window):.0f}")
    if args.perplexity_tokens:
        print(f"\nPerplexity, whole / last {unit // 2} tokens, {args.perplexity_tokens} tokens per length")
        perplexity = lambda *cell: evaluation.perplexity(*cell, args.perplexity_tokens, unit // 2)
        table(lambda length, source, method: "{:.2f} / {:.2f}".format(*perplexity(length, source, method)))
    print(f"\n{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
