"""Trains the model: a curriculum of growing length, the chunk-selection loss in the last phase.

usage: train.py --corpus CORPUS.json --tokenizer TOKENIZER.model --output DIR [--aux WEIGHT] [--start CHECKPOINT] [--until STEP]
Writes DIR/step-N.pt at the end of every phase but the last, DIR/latest.pt now and then and DIR/final.pt. --start
continues from a step-N.pt as if the run had not ended there: so a run with and one without the auxiliary losses can
share their beginning.
"""
import argparse
import os
import random
import time

import sentencepiece
import torch
import torch.nn.functional as F

from model import Llama, Pool, config
from tasks import ANSWER_WEIGHT, LAST_MIX, MIX, Rows

CHUNKS = (8, 16, 32)
STEP_TOKENS = 4096
LENGTHS = (64, 128, 256)
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

    def set_rates(self, decay):
        """Warm-up, then constant, then linear by `decay`, the part of the last phase that is done."""
        share = min(1.0, (self.step + 1) / WARM_UP) * (1 - 0.98 * decay)
        for optimiser, base in zip(self.optimisers, self.base_rates):
            optimiser.param_groups[0]["lr"] = base * share

    def train_step(self, length, mix, aux):
        rows = [self.rows.row(length, mix) for _ in range(STEP_TOKENS // length)]
        tokens, weights, owners = (torch.tensor(part) for part in list(zip(*rows))[:3])
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        is_answer = weights >= ANSWER_WEIGHT
        cross_entropy = lambda logits, of: F.cross_entropy(logits.flatten(0, -2), of.flatten(), reduction="none")
        if aux:
            pool = Pool(inputs, owners, is_answer)
            chunks = [self.random.choice(CHUNKS) for _ in self.model.layers]
            logits, pool_logits, row_loss, pool_loss = self.model(inputs, chunks, pool)
            pool_targets = targets[pool.row, pool.position]
            pool_answer = cross_entropy(pool_logits, pool_targets).mean()
            extra = aux * (row_loss + pool_loss + pool_answer)
            self.note("row selection", row_loss.item())
            self.note("pool selection", pool_loss.item())
            self.note("pool answer", pool_answer.item())
        else:
            logits, extra = self.model(inputs), 0.0
        losses = cross_entropy(logits, targets).view_as(weights)
        loss = (losses * weights).sum() / weights.sum() + extra
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        for kind in MIX:
            of_kind = torch.tensor([row.kind == kind for row in rows])
            counted = of_kind[:, None] & (is_answer if kind in ("passkey", "records") else (weights > 0))
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

    def run(self):
        start, end = time.time(), 0
        for index, (length, count) in enumerate(zip(LENGTHS, self.args.steps)):
            last_phase = index == len(LENGTHS) - 1
            begin, end = end, end + count
            if self.step >= end:
                continue
            if self.step >= self.args.until:
                return
            # So that a run that begins here does what one from the beginning does.
            self.rows.random.seed(self.args.seed + begin + 1)
            self.random.seed(self.args.seed + begin)
            self.rows.hard_keys = last_phase
            self.averages = {}
            while self.step < end:
                self.set_rates((self.step - begin) / count if last_phase else 0.0)
                self.train_step(length, LAST_MIX if last_phase else MIX, self.args.aux if last_phase else 0.0)
                self.step += 1
                if self.step % 50 == 0:
                    averages = " ".join(f"{name} {value:.3f}" for name, value in self.averages.items())
                    print(f"step {self.step}/{sum(self.args.steps)} length {length} {averages} "
                          f"{time.time() - start:.0f} s", flush=True)
                    self.save("latest.pt")
            self.save("final.pt" if last_phase else f"step-{end}.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--aux", type=float, default=0.3)
    parser.add_argument("--start", help="a step-N.pt")
    parser.add_argument("--until", type=int, default=10 ** 9, help="end with the phase that reaches this step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--steps", type=int, nargs=3, default=[400, 100, 300], help="at each of LENGTHS")
    args = parser.parse_args()
    os.makedirs(args.output, exist_ok=True)
    trainer = Trainer(args)
    if args.start:
        trainer.load(args.start)
    trainer.run()


if __name__ == "__main__":
    main()
