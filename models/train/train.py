"""Trains the model: a curriculum of growing length, the chunk-selection loss in the last phase.

usage: train.py --corpus CORPUS.json --tokenizer TOKENIZER.model --output DIR [--aux WEIGHT] [--start CHECKPOINT]
Writes DIR/step-N.pt at the end of every phase, DIR/latest.pt now and then and DIR/final.pt. --start continues from any
of these with new rows: so a run with and one without the auxiliary loss can share their beginning.
"""
import argparse
import math
import os
import random
import time

import sentencepiece
import torch
import torch.nn.functional as F

from model import Llama, config
from tasks import ANSWER_WEIGHT, MIX, Rows

CHUNKS = (8, 16, 32)
STEP_TOKENS = 4096
WARM_UP = 100


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised by five Newton-Schulz steps (Jordan et al. 2024)."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.1):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @staticmethod
    def orthogonalise(x):
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.mul_(group["momentum"]).add_(p.grad, alpha=1 - group["momentum"])
                update = self.orthogonalise(p.grad.lerp(buffer, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.args = args
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=args.tokenizer)
        self.rows = Rows(tokenizer, args.corpus, args.seed + 1)
        self.model = Llama(config(tokenizer.get_piece_size(), kv_heads=args.kv_heads))
        matrices = [p for n, p in self.model.named_parameters() if p.dim() == 2 and "embed" not in n]
        rest = [p for n, p in self.model.named_parameters() if p.dim() < 2 or "embed" in n]
        self.optimisers = [Muon(matrices, lr=0.02),
                           torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)]
        self.base_rates = [o.param_groups[0]["lr"] for o in self.optimisers]
        self.averages = {}
        self.step = 0
        self.random = random.Random(args.seed)

    def note(self, name, value):
        self.averages[name] = 0.95 * self.averages.get(name, value) + 0.05 * value

    def set_rates(self, total):
        progress = self.step / total
        share = min(1.0, (self.step + 1) / WARM_UP) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress)))
        for optimiser, base in zip(self.optimisers, self.base_rates):
            optimiser.param_groups[0]["lr"] = base * share

    def train_step(self, length, aux):
        rows = [self.rows.row(length) for _ in range(STEP_TOKENS // length)]
        tokens = torch.tensor([row[0] for row in rows])
        weights = torch.tensor([row[1] for row in rows])
        chunks = [self.random.choice(CHUNKS) for _ in self.model.layers] if aux else None
        logits, selection = self.model(tokens[:, :-1], chunks)
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        losses = losses.view_as(weights)
        loss = (losses * weights).sum() / weights.sum()
        if aux:
            self.note("selection", selection.item())
            loss = loss + aux * selection
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        for kind in MIX:
            of_kind = torch.tensor([row[2] == kind for row in rows])
            counted = of_kind[:, None] & ((weights >= ANSWER_WEIGHT) if kind in ("passkey", "records") else (weights > 0))
            if counted.any():
                self.note(kind, losses[counted].mean().item())

    def save(self, name):
        torch.save({"model": self.model.state_dict(), "config": self.model.config, "step": self.step,
                    "optimisers": [o.state_dict() for o in self.optimisers]},
                   os.path.join(self.args.output, name))

    def load(self, path):
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"]):
            optimiser.load_state_dict(saved)
        self.step = state["step"]
        self.rows.random.seed(self.args.seed + 1 + self.step)

    def run(self):
        phases = [(64, self.args.steps[0]), (128, self.args.steps[1]), (256, self.args.steps[2])]
        total = sum(self.args.steps)
        start = time.time()
        end = 0
        for index, (length, count) in enumerate(phases):
            last_phase = index == len(phases) - 1
            end += count
            if self.step >= end:
                continue
            while self.step < end:
                self.set_rates(total)
                self.train_step(length, self.args.aux if last_phase else 0.0)
                self.step += 1
                if self.step % 50 == 0:
                    averages = " ".join(f"{name} {value:.3f}" for name, value in self.averages.items())
                    print(f"step {self.step}/{total} length {length} {averages} {time.time() - start:.0f} s", flush=True)
                if self.step % 200 == 0:
                    self.save("latest.pt")
            self.save("final.pt" if last_phase else f"step-{end}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--aux", type=float, default=0.3)
    parser.add_argument("--start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--steps", type=int, nargs=3, default=[750, 350, 600], help="at length 64, 128, 256")
    args = parser.parse_args()
    os.makedirs(args.output, exist_ok=True)
    trainer = Trainer(args)
    if args.start:
        trainer.load(args.start)
    trainer.run()


if __name__ == "__main__":
    main()
