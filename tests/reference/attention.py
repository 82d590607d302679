"""Every legal pair of attention strategy and position scheme in float64 numpy, from the formulas.

Nothing here is shared with the engine. A strategy answers, for one query row of one head, which
keys it sees and at which positions query and key are rotated; the rotation is done anew for every
row. Run as a program it writes <golden>/attention/{cases.json, <model>.safetensors}.

Section numbers in comments are of the papers named in the engine's catalogue.
"""

import argparse
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from strategies import MIN_MARGIN, Llama, rotate, softmax

LENGTH = 64  # what the models count as trained on here
CHUNK = 16
NUM_TOKENS = 203
PROMPT = 186  # rows from here on are answer
# Of the prompt, every 9th row is kept, and the rows of the answer.
KEPT_ROWS = [*range(0, PROMPT, 9), *range(PROMPT - 1, NUM_TOKENS)]


# ---- Position schemes: name, params -> Table(theta, logit factor) -------------------------------


@dataclass
class Table:
    theta: np.ndarray
    factor: float = 1.0  # of logits
    entropy_length: float = 0.0
    exempt_layers: int = 0


def plain_theta(base: float, d: int) -> np.ndarray:
    return base ** (-2.0 * np.arange(d // 2) / d)


def ramp(d: int, base: float, length: float, fast: float, slow: float) -> np.ndarray:
    def correction(rotations):
        return d * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(base))
    low = max(math.floor(correction(fast)), 0)
    high = min(math.ceil(correction(slow)), d - 1)
    if low == high:
        high += 0.001
    return np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)


def table(name: str, p: dict, base: float, d: int, n: int) -> Table:
    theta = plain_theta(base, d)
    s = p.get("factor", 1.0)
    if name == "plain":
        return Table(theta)
    if name == "linear":
        return Table(theta / s)
    if name == "ntk":
        return Table(plain_theta(base * s ** (d / (d - 2)), d))
    if name == "dynamic_ntk":
        alpha = s * max(n, LENGTH) / LENGTH - (s - 1)
        return Table(plain_theta(base * alpha ** (d / (d - 2)), d))
    if name in ("ntk_by_parts", "yarn"):
        r = ramp(d, base, LENGTH, p.get("beta_fast", 32), p.get("beta_slow", 1))
        blended = theta * (1 - r) + theta / s * r
        return Table(blended, (0.1 * math.log(s) + 1) ** 2 if name == "yarn" else 1.0)
    if name == "llama3":
        wavelength = 2 * math.pi / theta
        low, high = p["low_freq_factor"], p["high_freq_factor"]
        smooth = (LENGTH / wavelength - low) / (high - low)
        blended = (1 - smooth) * theta / s + smooth * theta
        return Table(np.where(wavelength < LENGTH / high, theta,
                              np.where(wavelength > LENGTH / low, theta / s, blended)))
    if name == "abf":
        return Table(plain_theta(p["base"], d))
    if name == "entropy_abf":
        return Table(plain_theta(p["base"], d), 1.0, p["base_length"], p["exempt_layers"])
    raise ValueError(name)


# ---- One head of one layer ----------------------------------------------------------------------


@dataclass
class Head:
    """Un-rotated q, k, v [n, d] of one query head, and of the heads that share its choices."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    layer: int
    mates: list = field(default_factory=list)  # Head, itself included


def seen(indices, q_position, k_positions):
    return np.asarray(indices), q_position, np.asarray(k_positions)


class Attention:
    """Strategy and scheme together. `margins` collects score differences between the last choice
    taken and the first one rejected."""

    def __init__(self, strategy: str, params: dict, scheme: str, scheme_params: dict, base: float,
                 d: int):
        self.name, self.p = strategy, params
        self.scheme, self.sp = scheme, scheme_params
        self.base, self.d = base, d
        self.margins: list[float] = []
        self.representations: dict = {}
        self.layer0: dict = {}
        self.head_index = 0
        # ALiBi: logits fall by the slope of the head per position between key and query.
        self.slopes: np.ndarray | None = None

    # Which table a row uses, and which one chunk representations use.
    def row_table(self, i: int) -> Table:
        if self.slopes is not None:
            return Table(np.zeros(self.d // 2))
        if i >= PROMPT and self.unscaled_decode():
            return Table(plain_theta(self.base, self.d))
        if self.scheme == "dynamic_ntk":
            n = (PROMPT if i < PROMPT else i + 1) if self.sp.get("exact") else self.sp["length"]
            return table(self.scheme, self.sp, self.base, self.d, n)
        return table(self.scheme, self.sp, self.base, self.d, 0)

    def unscaled_decode(self) -> bool:
        tuned = self.scheme in ("plain", "abf", "entropy_abf")
        return self.name == "long_heads" and not tuned and not self.p.get("scale_decode")

    def local_theta(self) -> np.ndarray:
        if self.slopes is None and self.unscaled_decode():
            return plain_theta(self.base, self.d)
        return self.row_table(0).theta

    def entropy(self, i: int, layer: int, num_keys: int) -> float:
        t = self.row_table(i)
        length, exempt = t.entropy_length, t.exempt_layers
        if self.p.get("scale_logits"):
            length, exempt = LENGTH, 0
        if not length or layer < exempt:
            return 1.0
        return max(math.log(num_keys) / math.log(length), 1.0)

    # -- keys of a row --

    def keys(self, i: int, head: Head):
        everything = np.arange(i + 1)
        if self.name == "full":
            return [seen(everything, i, everything)]
        if self.name == "sliding_window":
            j = np.arange(max(0, i - self.p["window"] + 1), i + 1)
            return [seen(j, i, j)]
        if self.name == "streaming":
            # The cache before this step: sinks and the most recent tokens; positions are indices.
            g, recent = self.p["num_sinks"], self.p["recent_tokens"]
            kept = [j for j in range(i) if j < g or j >= i - recent] + [i]
            return [seen(kept, len(kept) - 1, np.arange(len(kept)))]
        if self.name == "lm_infinite":
            return self.lm_infinite(i, head)
        if self.name == "rerope":
            w = self.p["window"]
            near, far = everything[i - everything < w], everything[i - everything >= w]
            return [seen(near, i, near), seen(far, w, np.zeros(len(far)))]
        if self.name == "long_heads":
            return self.long_heads(i, head)
        raise ValueError(self.name)

    def lm_infinite(self, i: int, head: Head):
        g, w = self.p["num_sinks"], self.p["window"]
        limit = self.p.get("distance_limit", w)
        near = np.arange(max(0, i - w + 1), i + 1)
        far = np.arange(0, min(g, max(0, i - w + 1)))
        groups = [seen(near, i, near)]
        groups.append(seen(far, i, far) if limit == 2**31 else seen(far, limit, np.zeros(len(far))))
        count = self.p.get("top_tokens", 0)
        chooses = self.p.get("top_all_rows") or i >= PROMPT - 1
        if count and chooses and head.layer >= self.p["top_from_layer"]:
            middle = np.arange(g, max(g, i - w + 1))
            if len(middle) >= (count if self.p.get("top_all_or_none") else 1):
                d_mid = self.p["top_distance"]
                scores = head.k[middle] @ rotate(head.q[i], d_mid, self.row_table(i).theta)
                best = self.best(scores * self.row_table(i).factor, count)
                groups.append(seen(middle[best], d_mid, np.zeros(len(best))))
        return groups

    def best(self, scores: np.ndarray, count: int) -> list[int]:
        ranked = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
        if 0 < count < len(ranked):
            self.margins.append(scores[ranked[count - 1]] - scores[ranked[count]])
        return sorted(ranked[:count])

    # -- LongHeads and its variations --

    def represent(self, head: Head, c: int):
        key = (head.layer, id(head.q), c)
        if key in self.representations:
            return self.representations[key]
        rows = slice(c * CHUNK, (c + 1) * CHUNK)
        scale = 1 / math.sqrt(self.d)
        if not self.unscaled_decode():
            scale *= self.row_table(0).factor
        local = np.arange(CHUNK)
        ql = rotate(head.q[rows], local, self.local_theta())
        kl = rotate(head.k[rows], local, self.local_theta())
        scorer = self.p.get("scorer", 1)
        if scorer == 1:
            z = (softmax(scale * ql @ kl.T) @ head.v[rows]).mean(axis=0)
            r = softmax(scale * kl @ z) @ kl
        elif scorer == 2:
            r = kl.mean(axis=0)
        elif scorer == 3:
            r = (kl.max(axis=0), kl.min(axis=0))
        else:
            mass = np.zeros(CHUNK)
            for i in range(CHUNK):
                mass[: i + 1] += softmax(scale * kl[: i + 1] @ ql[i])
            ranked = sorted(local, key=lambda t: (-mass[t], t))
            self.margins.append(mass[ranked[3]] - mass[ranked[4]])
            r = head.k[rows][ranked[:4]].mean(axis=0)
        self.representations[key] = r
        return r

    def score(self, head: Head, i: int, c: int) -> float:
        total = 0.0
        for mate in head.mates or [head]:
            r = self.represent(mate, c)
            if isinstance(r, tuple):
                total += np.maximum(mate.q[i] * r[0], mate.q[i] * r[1]).sum()
            else:
                total += mate.q[i] @ r
        return total / len(head.mates or [head])

    def long_heads(self, i: int, head: Head):
        chunks = self.p["attention_length"] // CHUNK
        dense = self.p.get("begin_selective_length", self.p["attention_length"])
        decode = i >= PROMPT
        own, r = divmod(i, CHUNK)
        if i < dense and not (self.p.get("decode_boundary") and decode and i == dense - 1):
            everything = np.arange(i + 1)
            return [seen(everything, i, everything)]
        boundary = self.p.get("decode_boundary") and decode and r == CHUNK - 1
        previous = own if boundary else own - 1
        forced = set() if self.p.get("drop_first_chunk") else {0}
        if not boundary:
            forced.add(previous)
        candidates = list(range(1, previous))
        free = chunks - 3
        if self.p.get("order", 1) == 2:
            picks = candidates[-free:]
        elif self.p.get("share") == 4 and head.layer > 0:
            picks = self.layer0[self.head_index, i]
        else:
            scores = np.array([self.score(head, i, c) for c in candidates])
            picks = [candidates[at] for at in self.best(scores, free)]
        self.layer0.setdefault((self.head_index, i), picks)
        chosen = sorted(forced | set(picks))
        keys = [c * CHUNK + t for c in chosen for t in range(CHUNK)]
        skip = 1 if self.p.get("prompt_skips_self") and not decode else 0
        keys += range(own * CHUNK, i + 1 - skip)
        positions = np.arange(len(keys))
        return [seen(keys, len(chosen) * CHUNK + r, positions)]

    # -- one head --

    def attend(self, head: Head) -> np.ndarray:
        rows = []
        for i in range(len(head.q)):
            t = self.row_table(i)
            logits, indices, distances = [], [], []
            for j, q_position, k_positions in self.keys(i, head):
                if len(j) == 0:
                    continue
                keys = rotate(head.k[j], k_positions, t.theta)
                logits.append(keys @ rotate(head.q[i], q_position, t.theta))
                indices.append(j)
                distances.append(q_position - k_positions)
            indices = np.concatenate(indices)
            assert len(set(indices)) == len(indices)
            scale = t.factor * self.entropy(i, head.layer, len(indices)) / math.sqrt(self.d)
            scores = np.concatenate(logits) * scale
            if self.slopes is not None:
                scores = scores - self.slopes[self.head_index] * np.concatenate(distances)
            rows.append(softmax(scores) @ head.v[indices])
        return np.stack(rows)


class Model(Llama):
    """A Hugging Face Llama directory under an Attention."""

    def run(self, tokens: np.ndarray, attention: Attention) -> np.ndarray:
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[tokens]
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = x + self.heads(name, layer, self.norm(f"{name}.input_layernorm", x), attention)
            x = x + self.mlp(name, self.norm(f"{name}.post_attention_layernorm", x))
        return self.norm("model.norm", x) @ self.weights.get("lm_head.weight", embedding).T

    def heads(self, name, layer, x, attention):
        q, k, v = (self.linear(f"{name}.self_attn.{part}", x).reshape(len(x), -1, self.head_dim)
                   for part in ("q_proj", "k_proj", "v_proj"))
        group = q.shape[1] // k.shape[1]
        heads = [Head(np.ascontiguousarray(q[:, h]), k[:, h // group], v[:, h // group], layer)
                 for h in range(q.shape[1])]
        share = attention.p.get("share", 1)
        for h, head in enumerate(heads):
            if share == 2:
                head.mates = heads[h // group * group : (h // group + 1) * group]
            if share == 3:
                head.mates = heads
        outputs = []
        for h, head in enumerate(heads):
            attention.head_index = h
            outputs.append(attention.attend(head))
        return self.linear(f"{name}.self_attn.o_proj", np.concatenate(outputs, axis=-1))


class Mpt:
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


# ---- Cases --------------------------------------------------------------------------------------

SCHEMES = [
    ("plain", {}),
    ("linear", {"factor": 3.0}),
    ("ntk", {"factor": 3.0}),
    ("dynamic_ntk", {"factor": 2.0, "length": NUM_TOKENS}),
    ("dynamic_ntk", {"factor": 1.5, "exact": 1}),
    ("ntk_by_parts", {"factor": 4.0, "beta_fast": 8.0}),
    ("yarn", {"factor": 4.0, "beta_fast": 8.0}),
    ("llama3", {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("abf", {"base": 500000.0}),
    ("entropy_abf", {"base": 500000.0, "base_length": 24.0, "exempt_layers": 1}),
]
DYNAMIC = {"dynamic_ntk"}
LONG_HEADS = {"chunk_size": CHUNK, "attention_length": LENGTH}
TOP = {"num_sinks": 4, "window": 32, "distance_limit": 32, "top_tokens": 5, "top_distance": 16,
       "top_from_layer": 1}

# (strategy, parameters, schemes that are legal, None: all of SCHEMES)
ROWS = [
    ("full", {}, None),
    ("sliding_window", {"window": 40}, lambda name, p: name not in DYNAMIC),
    ("streaming", {"num_sinks": 5, "recent_tokens": 30}, lambda name, p: name not in DYNAMIC),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 40},
     lambda name, p: name in ("plain", "entropy_abf")),
    # Under scaled positions window and limit are the length that the scheme reaches.
    ("lm_infinite", {"num_sinks": 5, "window": 192, "distance_limit": 192},
     lambda name, p: p.get("factor") == 3.0),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 2**31},
     lambda name, p: name == "plain"),
    ("lm_infinite", TOP, lambda name, p: name in ("plain", "entropy_abf")),
    ("lm_infinite", TOP | {"top_all_rows": 1, "top_tokens": 9},
     lambda name, p: name == "plain"),
    ("lm_infinite", TOP | {"top_all_or_none": 1, "top_tokens": 150},
     lambda name, p: name == "plain"),
    ("long_heads", LONG_HEADS, lambda name, p: not p.get("exact")),
    ("long_heads", LONG_HEADS | {"scale_decode": 1},
     lambda name, p: name in ("ntk", "yarn")),
    ("long_heads", LONG_HEADS | {"begin_selective_length": 176},
     lambda name, p: name == "linear"),
    *(("long_heads", LONG_HEADS | extra, lambda name, p: name == "plain") for extra in (
        {"scorer": 2}, {"scorer": 3}, {"scorer": 4}, {"share": 2}, {"share": 3}, {"share": 4},
        {"scorer": 3, "share": 2}, {"order": 2}, {"drop_first_chunk": 1},
        {"prompt_skips_self": 1}, {"decode_boundary": 1},
        {"prompt_skips_self": 1, "decode_boundary": 1})),
    ("rerope", {"window": 24}, lambda name, p: name in ("plain", "entropy_abf")),
    ("rerope", {"window": 24, "scale_logits": 1}, lambda name, p: name == "plain"),
]


ALIBI_ROWS = [
    ("full", {}), ("sliding_window", {"window": 40}),
    ("streaming", {"num_sinks": 5, "recent_tokens": 30}),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 40}),
    ("lm_infinite", {"num_sinks": 5, "window": 40, "distance_limit": 2**31}),
    ("lm_infinite", TOP), ("long_heads", LONG_HEADS),
]


def alibi_cases():
    for strategy, params in ALIBI_ROWS:
        yield strategy, params, "plain", {}


def cases():
    for strategy, params, legal in ROWS:
        for scheme, scheme_params in SCHEMES:
            if legal is None or legal(scheme, scheme_params):
                yield strategy, params, scheme, scheme_params


def label(strategy, params, scheme, scheme_params) -> str:
    parts = [strategy, *(f"{k}{v}" for k, v in params.items()), scheme,
             *(f"{k}{v:g}" for k, v in scheme_params.items())]
    return ".".join(parts)


def compute(model: Model, case, seed: int):
    while True:
        generator = np.random.Generator(np.random.PCG64(seed))
        tokens = generator.integers(model.config["vocab_size"], size=NUM_TOKENS, dtype=np.int32)
        base = model.config.get("rope_theta", 10000.0)
        attention = Attention(*case, base, model.head_dim)
        logits = model.run(tokens, attention)
        if min(attention.margins, default=1.0) >= MIN_MARGIN:
            return tokens, logits
        seed += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", type=Path, help="folder that holds llama/, e.g. tests/golden")
    golden = parser.parse_args().golden
    out = golden / "attention"
    out.mkdir(exist_ok=True)
    listed = []
    models = [("llama/mha", Model, cases), ("llama/gqa", Model, cases),
              ("families/mpt", Mpt, alibi_cases)]
    for model_idx, (path, kind, of_model) in enumerate(models):
        model = kind(golden / path)
        model_name = path.split("/")[1]
        tensors = {"rows": np.array(KEPT_ROWS, dtype=np.int32)}
        for case_idx, case in enumerate(of_model()):
            tokens, logits = compute(model, case, 1_000_000 * (model_idx + 1) + 1000 * case_idx)
            name = label(*case)
            tensors[f"{name}/tokens"] = tokens
            tensors[f"{name}/logits"] = logits[KEPT_ROWS].astype(np.float32)
            if model_idx != 1:
                strategy, params, scheme, scheme_params = case
                paths = [path] if kind is Mpt else [p for p, k, _ in models if k is kind]
                listed.append({"name": name, "models": paths, "strategy": strategy,
                               "params": params, "position": scheme,
                               "position_params": scheme_params})
            print(f"{model_name} {name}")
        save_file(tensors, out / f"{model_name}.safetensors")
    about = {"trained_length": LENGTH, "prompt_tokens": PROMPT, "cases": listed}
    (out / "cases.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
