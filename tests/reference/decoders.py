"""Whole decoders in float64 numpy that run under an Attention: Llama and those like it, MPT, and
CoCA's two."""

import json
import math
from pathlib import Path

import numpy as np
from attention import Attention, Head
from safetensors.numpy import load_file
from strategies import Llama, softmax


class LlamaDecoder(Llama):
    """A Hugging Face Llama directory under an Attention."""

    def run(self, tokens: np.ndarray, attention: Attention) -> np.ndarray:
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[tokens]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self.heads(name, layer, self.norm(f"{name}.input_layernorm", x), attention)
            x = x + self.mlp(name, self.norm(f"{name}.post_attention_layernorm", x))
        return self.norm("model.norm", x) @ self.weights.get("lm_head.weight", embedding).T

    def qkv(self, name, x):
        """q, k and v, each [n, heads, d], before any rotation."""
        return (self.linear(f"{name}.self_attn.{part}", x).reshape(len(x), -1, self.head_dim)
                for part in ("q_proj", "k_proj", "v_proj"))

    def heads(self, name, layer, x, attention):
        q, k, v = self.qkv(name, x)
        group = q.shape[1] // k.shape[1]
        heads = [Head(np.ascontiguousarray(q[:, h]), k[:, h // group], v[:, h // group], layer)
                 for h in range(q.shape[1])]
        share = attention.p.get("share")
        for h, head in enumerate(heads):
            if share == "group":
                head.mates = heads[h // group * group : (h // group + 1) * group]
            if share == "layer":
                head.mates = heads
        outputs = []
        for h, head in enumerate(heads):
            attention.head_index = h
            outputs.append(attention.attend(head))
        return self.linear(f"{name}.self_attn.o_proj", np.concatenate(outputs, axis=-1))


class Qwen3Decoder(LlamaDecoder):
    """Every head of q and k has an RMS norm."""

    def qkv(self, name, x):
        q, k, v = super().qkv(name, x)
        return self.norm(f"{name}.self_attn.q_norm", q), self.norm(f"{name}.self_attn.k_norm", k), v


class Phi3Decoder(LlamaDecoder):
    """q, k, v in one matrix, gate and up in another."""

    def qkv(self, name, x):
        d = self.head_dim
        heads, kv = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        rows = self.linear(f"{name}.self_attn.qkv_proj", x).reshape(len(x), -1, d)
        return rows[:, :heads], rows[:, heads : heads + kv], rows[:, heads + kv :]

    def mlp(self, name, x):
        gate, up = np.split(self.linear(f"{name}.mlp.gate_up_proj", x), 2, axis=-1)
        return self.linear(f"{name}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)


class MixtralDecoder(LlamaDecoder):
    """Each token's MLP is a mean of its best experts, weighted by the softmax over their scores."""

    def mlp(self, name, x):
        scores = self.linear(f"{name}.block_sparse_moe.gate", x)
        rows = []
        for row, score in zip(x, scores, strict=True):
            chosen = np.argsort(-score)[: self.config["num_experts_per_tok"]]
            experts = [self.expert(f"{name}.block_sparse_moe.experts.{e}", row) for e in chosen]
            rows.append(softmax(score[chosen]) @ np.stack(experts))
        return np.stack(rows)

    def expert(self, name, x):
        gate = self.linear(f"{name}.w1", x)
        return self.linear(f"{name}.w2", gate / (1 + np.exp(-gate)) * self.linear(f"{name}.w3", x))


class MptDecoder:
    """A Hugging Face MPT directory: layer norms without bias, stacked q, k, v, exact GELU, ALiBi."""

    def __init__(self, directory: Path, dtype=np.float64):
        self.config = json.loads((directory / "config.json").read_text())
        file = load_file(directory / "model.safetensors")
        self.weights = {name: x.astype(dtype) for name, x in file.items()}
        self.head_dim = self.config["d_model"] // self.config["n_heads"]

    def slopes(self) -> np.ndarray:
        heads = self.config["n_heads"]
        rounded = 2 ** math.ceil(math.log2(heads))
        slopes = [2.0 ** (-(i + 1) * 8 / rounded) for i in range(rounded)]
        return np.array(slopes if rounded == heads else (slopes[1::2] + slopes[::2])[:heads])

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered**2).mean(axis=-1, keepdims=True)
        return centered / np.sqrt(variance + 1e-5) * self.weights[f"{name}.weight"]

    def run(self, tokens: np.ndarray, attention: Attention) -> np.ndarray:
        attention.slopes = self.slopes()
        embedding = self.weights["transformer.wte.weight"]
        erf = np.vectorize(math.erf)
        x = embedding[tokens]
        for layer in range(self.config["n_layers"]):
            name = f"transformer.blocks.{layer}"
            qkv = self.norm(f"{name}.norm_1", x) @ self.weights[f"{name}.attn.Wqkv.weight"].T
            q, k, v = (part.reshape(len(x), -1, self.head_dim) for part in np.split(qkv, 3, axis=1))
            outputs = []
            for h in range(q.shape[1]):
                attention.head_index = h
                outputs.append(attention.attend(Head(q[:, h], k[:, h], v[:, h], layer)))
            heads = np.concatenate(outputs, axis=-1)
            x = x + heads @ self.weights[f"{name}.attn.out_proj.weight"].T
            up = self.norm(f"{name}.norm_2", x) @ self.weights[f"{name}.ffn.up_proj.weight"].T
            gelu = 0.5 * up * (1 + erf(up / math.sqrt(2)))
            x = x + gelu @ self.weights[f"{name}.ffn.down_proj.weight"].T
        return self.norm("transformer.norm_f", x) @ embedding.T


# ---- CoCA: random models in the authors' layouts, marked by "coca_q" ----------------------------


class CocaLlama(LlamaDecoder):
    """Llama with t_proj in the place of k_proj."""

    def run(self, tokens: np.ndarray, attention: Attention) -> np.ndarray:
        attention.coca = self.config["coca_q"]
        return super().run(tokens, attention)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return super().linear(name.replace("k_proj", "t_proj"), x)


class CocaNeox:
    """GPT-NeoX whose query_key_value makes q, t and v, head by head."""

    def __init__(self, directory: Path):
        self.config = json.loads((directory / "config.json").read_text())
        file = load_file(directory / "model.safetensors")
        self.weights = {name: x.astype(np.float64) for name, x in file.items()}
        self.head_dim = self.config["hidden_size"] // self.config["num_attention_heads"]

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered**2).mean(axis=-1, keepdims=True)
        scaled = centered / np.sqrt(variance + self.config["layer_norm_eps"])
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def run(self, tokens: np.ndarray, attention: Attention) -> np.ndarray:
        attention.coca = self.config["coca_q"]
        erf = np.vectorize(math.erf)
        x = self.weights["gpt_neox.embed_in.weight"][tokens]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"gpt_neox.layers.{layer}"
            qtv = self.linear(f"{name}.attention.query_key_value",
                              self.norm(f"{name}.input_layernorm", x))
            q, t, v = np.split(qtv.reshape(len(x), -1, 3 * self.head_dim), 3, axis=-1)
            heads = [attention.attend(Head(q[:, h], t[:, h], v[:, h], layer))
                     for h in range(q.shape[1])]
            up = self.linear(f"{name}.mlp.dense_h_to_4h",
                             self.norm(f"{name}.post_attention_layernorm", x))
            gelu = 0.5 * up * (1 + erf(up / math.sqrt(2)))
            x = (x + self.linear(f"{name}.attention.dense", np.concatenate(heads, axis=-1))
                 + self.linear(f"{name}.mlp.dense_4h_to_h", gelu))
        return self.norm("gpt_neox.final_layer_norm", x) @ self.weights["embed_out.weight"].T
