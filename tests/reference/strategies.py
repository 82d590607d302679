"""A Llama forward pass in float64 numpy under three attention strategies, as plain as possible.

Nothing here is shared with the engine: keys are gathered by absolute index and rotated anew at
the position the strategy gives them, one query row at a time. Heads are [num_tokens, head_dim];
query head h reads key/value head h // (num_heads / num_kv_heads). Queries and keys reach a
strategy un-rotated.

Run as a program it writes <golden>/strategies/<case>/{golden.safetensors, params.json} for the
checkpoints in <golden>/llama.
"""

import argparse
import json
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

# A selection whose k-th and (k+1)-th scores are closer than this could flip in float32.
MIN_MARGIN = 1e-4


# ---- Primitives ---------------------------------------------------------------------------------


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def rope_frequencies(base: float, head_dim: int) -> np.ndarray:
    """theta_m = base^(-2m/d) for m in 0..d/2-1."""
    return base ** (-2.0 * np.arange(head_dim // 2) / head_dim)


def rotate(x: np.ndarray, positions, theta: np.ndarray) -> np.ndarray:
    """R(p) x in the half-split layout: pair m is the elements (m, m + d/2). x [..., d]."""
    angle = np.asarray(positions, dtype=x.dtype)[..., None] * theta
    cos, sin = np.cos(angle), np.sin(angle)
    x1, x2 = np.split(x, 2, axis=-1)
    return np.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def attend_at(q, q_position, k, k_positions, v, theta) -> np.ndarray:
    """One query row against gathered keys, both rotated here at the given positions."""
    logits = rotate(k, k_positions, theta) @ rotate(q, q_position, theta)
    return softmax(logits / math.sqrt(q.shape[-1])) @ v


# ---- Strategies: attend(q, k, v, theta) -> [num_tokens, head_dim] for one query head -----------


@dataclass
class Full:
    """Causal attention over every key at its absolute position."""

    name = "full"

    def attend(self, q, k, v, theta):
        rows = []
        for i in range(len(q)):
            keys = np.arange(i + 1)
            rows.append(attend_at(q[i], i, k[keys], keys, v[keys], theta))
        return np.stack(rows)


@dataclass
class LmInfinite:
    """A window of W keys at true distance, and the first G keys pinned at distance D beyond it."""

    name = "lm_infinite"
    G: int
    W: int
    D: int

    def keys(self, i: int) -> list[tuple[int, int]]:
        """(key index, effective distance) of everything row i attends to, in key order."""
        keys = []
        for j in range(i + 1):
            if i - j < self.W:
                keys.append((j, i - j))
            elif j < self.G:
                keys.append((j, self.D))
        return keys

    def weights(self, i: int, q, k, theta) -> np.ndarray:
        """Attention weights of row i over keys(i); one softmax over both spans."""
        logits = []
        for j, distance in self.keys(i):
            if i - j < self.W:
                logits.append(rotate(q[i], i, theta) @ rotate(k[j], j, theta))
            else:
                logits.append(rotate(q[i], distance, theta) @ k[j])
        return softmax(np.array(logits, dtype=q.dtype) / math.sqrt(q.shape[-1]))

    def attend(self, q, k, v, theta):
        rows = []
        for i in range(len(q)):
            keys = [j for j, _ in self.keys(i)]
            rows.append(self.weights(i, q, k, theta) @ v[keys])
        return np.stack(rows)


@dataclass
class LongHeads:
    """First, previous and own chunk of w tokens plus the K - 3 best others, per head and token.

    Rows below S are dense. Selected chunks are laid side by side from position 0 and the own chunk
    follows them. `margins` collects score(last pick) - score(first reject) wherever one was
    rejected; `picked` the selection of every selective row, in the order computed.
    """

    name = "long_heads"
    w: int
    K: int
    S: int
    margins: list = field(default_factory=list, repr=False)
    picked: list = field(default_factory=list, repr=False)

    def represent(self, q, k, v, theta) -> np.ndarray:
        """The representation c [head_dim] of one complete chunk, from its un-rotated q and k."""
        scale = 1 / math.sqrt(q.shape[-1])
        local = np.arange(len(q))
        q_local, k_local = rotate(q, local, theta), rotate(k, local, theta)
        chunk_query = (softmax(scale * q_local @ k_local.T) @ v).mean(axis=0)
        return softmax(scale * k_local @ chunk_query) @ k_local

    def candidates(self, own: int) -> range:
        return range(1, own - 1)

    def select(self, q_row, own: int, representations) -> list[int]:
        """Selected chunk ids for a query in chunk `own` (itself not included), ascending."""
        scores = {c: float(q_row @ representations[c]) for c in self.candidates(own)}
        ranked = sorted(scores, key=lambda c: (-scores[c], c))
        num_picks = self.K - 3
        if 0 < num_picks < len(ranked):
            self.margins.append(scores[ranked[num_picks - 1]] - scores[ranked[num_picks]])
        chunks = sorted({0, max(own - 1, 0), *ranked[:num_picks]} - {own})
        self.picked.append(chunks)
        return chunks

    def attend(self, q, k, v, theta):
        w = self.w
        representations = []
        for start in range(0, len(q) // w * w, w):
            chunk = slice(start, start + w)
            representations.append(self.represent(q[chunk], k[chunk], v[chunk], theta))

        rows = []
        for i in range(len(q)):
            own, offset = divmod(i, w)
            if i < self.S:
                keys = np.arange(i + 1)
                positions, q_position = keys, i
            else:
                chunks = self.select(q[i], own, representations)
                selected = [c * w + t for c in chunks for t in range(w)]
                keys = np.array(selected + list(range(own * w, i + 1)))
                positions, q_position = np.arange(len(keys)), len(chunks) * w + offset
            rows.append(attend_at(q[i], q_position, k[keys], positions, v[keys], theta))
        return np.stack(rows)


# ---- Model --------------------------------------------------------------------------------------


class Llama:
    """A Hugging Face Llama directory (float32 or float16 tensors), computed in `dtype`."""

    def __init__(self, directory: Path, dtype=np.float64):
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = {}
        for file in sorted(directory.glob("model*.safetensors")):
            self.weights |= {name: x.astype(dtype) for name, x in load_file(file).items()}
        heads = self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // heads
        self.theta = rope_frequencies(self.config["rope_theta"], self.head_dim).astype(dtype)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return rms_norm(x, self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def attention(self, layer: str, x: np.ndarray, strategy) -> np.ndarray:
        q, k, v = (
            self.linear(f"{layer}.self_attn.{name}", x).reshape(len(x), -1, self.head_dim)
            for name in ("q_proj", "k_proj", "v_proj"))
        group = q.shape[1] // k.shape[1]
        heads = [strategy.attend(q[:, h], k[:, h // group], v[:, h // group], self.theta)
                 for h in range(q.shape[1])]
        return self.linear(f"{layer}.self_attn.o_proj", np.concatenate(heads, axis=-1))

    def mlp(self, layer: str, x: np.ndarray) -> np.ndarray:
        gate = self.linear(f"{layer}.mlp.gate_proj", x)
        up = self.linear(f"{layer}.mlp.up_proj", x)
        return self.linear(f"{layer}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)

    def logits(self, tokens: np.ndarray, strategy) -> np.ndarray:
        """[num_tokens, vocab] logits of every position."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[tokens]
        for layer_idx in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{layer_idx}"
            x = x + self.attention(layer, self.norm(f"{layer}.input_layernorm", x), strategy)
            x = x + self.mlp(layer, self.norm(f"{layer}.post_attention_layernorm", x))
        return self.norm("model.norm", x) @ self.weights.get("lm_head.weight", embedding).T


# ---- Golden files -------------------------------------------------------------------------------

MODELS = ["mha", "gqa", "gqa8"]

# (case suffix, strategy, parameters, number of tokens)
CASES = [
    ("full", Full, {}, 231),
    ("lm_infinite_g4_w16", LmInfinite, {"G": 4, "W": 16, "D": 16}, 231),
    ("lm_infinite_g10_w32", LmInfinite, {"G": 10, "W": 32, "D": 32}, 240),
    ("lm_infinite_no_sinks", LmInfinite, {"G": 0, "W": 16, "D": 16}, 231),
    ("lm_infinite_g20_d12", LmInfinite, {"G": 20, "W": 16, "D": 12}, 231),
    ("lm_infinite_w_covers_all", LmInfinite, {"G": 4, "W": 256, "D": 256}, 231),
    ("long_heads_k4", LongHeads, {"w": 16, "K": 4, "S": 64}, 233),
    ("long_heads_k5_smallest_s", LongHeads, {"w": 16, "K": 5, "S": 64}, 247),
    ("long_heads_k8_whole_chunks", LongHeads, {"w": 16, "K": 8, "S": 128}, 240),
    ("long_heads_k16_all_fit", LongHeads, {"w": 16, "K": 16, "S": 240}, 250),
    ("long_heads_k20_all_dense", LongHeads, {"w": 16, "K": 20, "S": 304}, 231),
]


def compute(model: Llama, strategy_type, params: dict, num_tokens: int, seed: int):
    """Tokens, logits and smallest selection margin, at the first seed whose margin is safe."""
    while True:
        generator = np.random.Generator(np.random.PCG64(seed))
        tokens = generator.integers(model.config["vocab_size"], size=num_tokens, dtype=np.int32)
        strategy = strategy_type(**params)
        logits = model.logits(tokens, strategy)
        margin = min(getattr(strategy, "margins", []), default=None)
        if margin is None or margin >= MIN_MARGIN:
            return seed, tokens, logits, margin
        seed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="folder that holds llama/, e.g. tests/golden")
    golden = parser.parse_args().golden

    shutil.rmtree(golden / "strategies", ignore_errors=True)
    for model_idx, model_name in enumerate(MODELS):
        model = Llama(golden / "llama" / model_name)
        for case_idx, (case, strategy_type, params, num_tokens) in enumerate(CASES):
            first_seed = 100_000 * (model_idx + 1) + 1000 * case_idx
            seed, tokens, logits, margin = compute(
                model, strategy_type, params, num_tokens, first_seed)

            directory = golden / "strategies" / f"{model_name}_{case}"
            directory.mkdir(parents=True)
            save_file({"tokens": tokens, "logits": logits.astype(np.float32)},
                      directory / "golden.safetensors")
            about = {"model": f"llama/{model_name}", "strategy": strategy_type.name, **params,
                     "num_tokens": num_tokens, "seed": seed}
            if margin is not None:
                about["min_margin"] = float(f"{margin:.3e}")
            (directory / "params.json").write_text(json.dumps(about, indent=1) + "\n")
            print(f"{directory.name:34} seed {seed} "
                  + (f"min margin {margin:.2e}" if margin is not None else ""))


if __name__ == "__main__":
    main()
