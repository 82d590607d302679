"""The numbers that blocks of GGUF tensors stand for, written from the public description of the format: bytes to float32.

One function per type, over an array uint8 [blocks, bytes of a block]; the result is [blocks, numbers of a block]. Products
of integers and a scale are exact in float32; taking a minimum off rounds once, in float32.
"""

import numpy as np

F32 = np.float32


def half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of every block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(F32)


def f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.copy().view(F32)


def f16(blocks: np.ndarray) -> np.ndarray:
    return blocks.copy().view(np.float16).astype(F32)


def bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.copy().view(np.uint16).astype(np.uint32) << 16).view(F32)


def q8_0(blocks: np.ndarray) -> np.ndarray:
    return half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(F32)


def q4_0(blocks: np.ndarray) -> np.ndarray:
    halves = blocks[:, 2:]
    numbers = np.concatenate([halves & 15, halves >> 4], axis=1).astype(F32) - F32(8)
    return half(blocks, 0) * numbers


def six_bit_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum of the eight groups of 32 of a block of Q4_K or Q5_K: [blocks, 8] each."""
    s = blocks[:, 4:16]
    scales = np.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | (s[:, 0:4] >> 6 << 4)], axis=1)
    minima = np.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | (s[:, 4:8] >> 6 << 4)], axis=1)
    return half(blocks, 0) * scales.astype(F32), half(blocks, 2) * minima.astype(F32)


def low_four(halves: np.ndarray) -> np.ndarray:
    """[blocks, 128] bytes to the low four bits of [blocks, 8 groups, 32]: even groups in the low halves of 32 bytes."""
    pairs = halves.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def q4_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = six_bit_scales(blocks)
    numbers = low_four(blocks[:, 16:144]).astype(F32)
    return (scales[:, :, None] * numbers - minima[:, :, None]).reshape(len(blocks), 256)


def q5_k(blocks: np.ndarray) -> np.ndarray:
    scales, minima = six_bit_scales(blocks)
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    numbers = (low_four(blocks[:, 48:176]) | fifth << 4).astype(F32)
    return (scales[:, :, None] * numbers - minima[:, :, None]).reshape(len(blocks), 256)


def q6_k(blocks: np.ndarray) -> np.ndarray:
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> (2 * np.arange(4, dtype=np.uint8))[None, None, :, None] & 3
    numbers = (low | upper << 4).astype(np.int8) - np.int8(32)
    scales = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(F32)
    return (scales[:, :, None] * numbers.reshape(-1, 16, 16).astype(F32)).reshape(len(blocks), 256)


# Numbers and bytes of a block, and what it decodes to.
TYPES = {
    "F32": (1, 4, f32),
    "F16": (1, 2, f16),
    "BF16": (1, 2, bf16),
    "Q8_0": (32, 34, q8_0),
    "Q4_0": (32, 18, q4_0),
    "Q4_K": (256, 144, q4_k),
    "Q5_K": (256, 176, q5_k),
    "Q6_K": (256, 210, q6_k),
}
# Where their float16 numbers are: random bytes there would be infinite.
HALVES = {"F32": [], "F16": [0], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def decode(kind: str, rows: np.ndarray) -> np.ndarray:
    """uint8 [rows, bytes] to float32 [rows, numbers]."""
    _, size, of_blocks = TYPES[kind]
    return of_blocks(rows.reshape(-1, size)).reshape(len(rows), -1)


def random_blocks(kind: str, rows: int, columns: int, rng, size: float) -> np.ndarray:
    """Blocks of any bits whose numbers have about this size: uint8 [rows, bytes]."""
    numbers, num_bytes, _ = TYPES[kind]
    blocks = rng.integers(0, 256, (rows * columns // numbers, num_bytes), dtype=np.uint8)
    largest = {"Q8_0": 127, "Q4_0": 8, "Q4_K": 15 * 63, "Q5_K": 31 * 63, "Q6_K": 31 * 127}.get(kind, 1)
    for i, at in enumerate(HALVES[kind]):
        # The minimum takes off half of the range.
        scale = size / largest * (1 if i == 0 else 7.5 if kind == "Q4_K" else 15.5)
        halves = (scale * rng.uniform(1, 3, len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = halves[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)
