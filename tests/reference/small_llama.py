"""A Llama or Qwen2 in float64 numpy, for models of a few thousand weights, and random weights for one."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Shape:
    vocab: int = 32
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    ffn: int = 32
    tied: bool = False
    qkv_bias: bool = False
    eps: float = 1e-5
    theta: float = 10000.0
    factors: list[float] | None = None  # divisors of the rotary angles

    def linears(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of the matrices inside a layer."""
        return {
            "self_attn.q_proj": (self.heads * self.head_dim, self.hidden),
            "self_attn.k_proj": (self.kv_heads * self.head_dim, self.hidden),
            "self_attn.v_proj": (self.kv_heads * self.head_dim, self.hidden),
            "self_attn.o_proj": (self.hidden, self.heads * self.head_dim),
            "mlp.gate_proj": (self.ffn, self.hidden),
            "mlp.up_proj": (self.ffn, self.hidden),
            "mlp.down_proj": (self.hidden, self.ffn),
        }

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Hugging Face names, without .weight, of all matrices."""
        names = {"model.embed_tokens": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            names |= {f"model.layers.{layer}.{name}": size for name, size in self.linears().items()}
        return names if self.tied else names | {"lm_head": (self.vocab, self.hidden)}

    def vectors(self) -> dict[str, int]:
        names = {"model.norm.weight": self.hidden}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            names[prefix + "input_layernorm.weight"] = self.hidden
            names[prefix + "post_attention_layernorm.weight"] = self.hidden
            for part in "qkv" if self.qkv_bias else "":
                name = f"self_attn.{part}_proj"
                names[f"{prefix}{name}.bias"] = self.linears()[name][0]
        return names


def random_vectors(shape: Shape, rng) -> dict[str, np.ndarray]:
    return {name: ((0 if name.endswith("bias") else 1) + 0.2 * rng.standard_normal(size)).astype(np.float32)
            for name, size in shape.vectors().items()}


def logits(shape: Shape, weights: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """[tokens, vocab], of weights by their Hugging Face names."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    positions = np.arange(len(tokens))
    frequencies = shape.theta ** (-np.arange(0, shape.head_dim, 2) / shape.head_dim)
    if shape.factors is not None:
        frequencies = frequencies / np.array(shape.factors, np.float32).astype(np.float64)
    angles = positions[:, None, None] * frequencies

    def norm(name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + shape.eps) * w[name + ".weight"]

    def linear(name, x):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0)

    def turned(x):
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def attention(prefix, x):
        q, k, v = (linear(f"{prefix}.{part}_proj", x).reshape(len(x), -1, shape.head_dim) for part in "qkv")
        q, k = turned(q), turned(k)
        k, v = (np.repeat(part, shape.heads // shape.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(shape.head_dim)
        scores = np.where(positions[None, :, None] >= positions[None, None, :], scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return linear(f"{prefix}.o_proj", np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1))

    def mlp(prefix, x):
        gate = linear(prefix + ".gate_proj", x)
        return linear(prefix + ".down_proj", gate / (1 + np.exp(-gate)) * linear(prefix + ".up_proj", x))

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        x = x + attention(prefix + "self_attn", norm(prefix + "input_layernorm", x))
        x = x + mlp(prefix + "mlp", norm(prefix + "post_attention_layernorm", x))
    x = norm("model.norm", x)
    return x @ w["model.embed_tokens.weight" if shape.tied else "lm_head.weight"].T
