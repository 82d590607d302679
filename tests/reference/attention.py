"""Every attention strategy under every position scheme in float64 numpy, from the formulas.

Nothing here is shared with the engine. A strategy answers, for one query row of one head, which
keys it sees and at which positions query and key are rotated; the rotation is done anew for every
row.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from coca import coca_logits
from schemes import LENGTH, Table, plain_theta, table
from strategies import rotate, softmax

CHUNK = 16
PROMPT = 186  # rows from here on are answer


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
        # CoCA: keys are t, and the form in which queries enter.
        self.coca: str | None = None

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
                scores = self.logits(head.q[i], d_mid, head.k[middle], np.zeros(len(middle)),
                                     self.row_table(i).theta)
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
        scorer = self.p.get("scorer", "long_heads")
        if scorer == "long_heads":
            z = (softmax(scale * ql @ kl.T) @ head.v[rows]).mean(axis=0)
            r = softmax(scale * kl @ z) @ kl
        elif scorer == "mean_key":
            r = kl.mean(axis=0)
        elif scorer == "quest":
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
        if self.p.get("order") == "last":
            picks = candidates[-free:]
        elif self.p.get("share") == "layers" and head.layer > 0:
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

    def logits(self, q, q_position, k, k_positions, theta) -> np.ndarray:
        if self.coca:
            return coca_logits(q, q_position, k, k_positions, theta, self.coca)
        return rotate(k, k_positions, theta) @ rotate(q, q_position, theta)

    def attend(self, head: Head) -> np.ndarray:
        rows = []
        for i in range(len(head.q)):
            t = self.row_table(i)
            logits, indices, distances = [], [], []
            for j, q_position, k_positions in self.keys(i, head):
                if len(j) == 0:
                    continue
                logits.append(self.logits(head.q[i], q_position, head.k[j], k_positions, t.theta))
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
