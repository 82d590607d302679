"""Rotary tables of the position schemes in float64 numpy, from the papers' formulas."""

import math
from dataclasses import dataclass

import numpy as np

LENGTH = 64  # what the models count as trained on here


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
