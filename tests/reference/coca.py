"""Collinear constrained attention (Zhu et al. 2023) as the triple sum that defines it."""

import numpy as np
from strategies import rotate


def collinear(t: np.ndarray) -> np.ndarray:
    """Both members of a rotated pair are relu of the mean of t's two halves. t [..., d]."""
    u = np.maximum(np.add(*np.split(t, 2, axis=-1)) / 2, 0)
    return np.concatenate([u, u], axis=-1)


def tied(q: np.ndarray, form: str) -> np.ndarray:
    """The query as it enters: raw (slack), or equal within each pair (strict)."""
    if form == "raw":
        return q
    a, b = np.split(q, 2, axis=-1)
    member = np.sqrt((a * a + b * b) / 2) if form == "norm" else (a + b) / 2
    return np.concatenate([member, member], axis=-1)


def coca_logits(q, q_position, t, k_positions, theta, form: str) -> np.ndarray:
    """sum_x q[x] (R(n) t)[x] (R(m) q)[x] of one query at m with keys at n, before scaling."""
    q = tied(q, form)
    keys = rotate(collinear(t), k_positions, theta)
    return np.einsum("x,jx,x->j", q, keys, rotate(q, q_position, theta))
