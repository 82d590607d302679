"""What the quantised matrices of Hugging Face checkpoints stand for, written from the public descriptions of the formats."""

import numpy as np

F32 = np.float32
# Bits 4 i of a word of AWQ (gemm) are those of its output of this number.
AWQ_OUTPUTS = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(numbers: np.ndarray, axis: int, order=range(8)) -> np.ndarray:
    """Numbers from 0 to 15 to words of eight along an axis, number order[i] of each eight in bits 4 i: int32."""
    numbers = np.moveaxis(numbers, axis, -1)
    eights = numbers.reshape(*numbers.shape[:-1], -1, 8)[..., list(order)].astype(np.uint32)
    words = np.bitwise_or.reduce(eights << np.arange(0, 32, 4, dtype=np.uint32), axis=-1)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def weights(integers, zeros, scales, group) -> np.ndarray:
    """integers [inputs, outputs], zeros and scales [groups, outputs], group [inputs]: float32 [outputs, inputs]."""
    differences = (integers.astype(np.int32) - zeros[group].astype(np.int32)).astype(F32)
    return np.ascontiguousarray((scales.astype(F32)[group] * differences).T)


def random_int4(outputs: int, inputs: int, group_size: int, symmetric: bool, rng):
    """integers, zeros, scales, group of each input in order."""
    groups = -(-inputs // group_size)
    integers = rng.integers(0, 16, (inputs, outputs))
    zeros = np.full((groups, outputs), 8) if symmetric else rng.integers(0, 16, (groups, outputs))
    scales = (rng.uniform(0.5, 1.5, (groups, outputs)) * 2 / 8 / np.sqrt(inputs)).astype(np.float16)
    return integers, zeros, scales, np.arange(inputs) // group_size


def gptq(name: str, outputs: int, inputs: int, group_size: int, symmetric: bool, by_activation: bool, rng):
    """Tensors of a matrix as AutoGPTQ writes them, and its weights."""
    integers, zeros, scales, group = random_int4(outputs, inputs, group_size, symmetric, rng)
    if by_activation:
        group = rng.permutation(group)
    tensors = {
        f"{name}.qweight": pack(integers, 0),
        f"{name}.qzeros": pack((zeros - 1) & 15, 1),
        f"{name}.scales": scales,
        f"{name}.g_idx": group.astype(np.int32),
    }
    return tensors, weights(integers, zeros, scales, group)


def awq(name: str, outputs: int, inputs: int, group_size: int, rng):
    """The same as AutoAWQ (gemm) writes them."""
    integers, zeros, scales, group = random_int4(outputs, inputs, group_size, False, rng)
    tensors = {
        f"{name}.qweight": pack(integers, 1, AWQ_OUTPUTS),
        f"{name}.qzeros": pack(zeros, 1, AWQ_OUTPUTS),
        f"{name}.scales": scales,
    }
    return tensors, weights(integers, zeros, scales, group)


def e4m3(bits: np.ndarray) -> np.ndarray:
    """A sign, 4 bits of exponent with the bias 7, 3 of mantissa; without infinity, 0x7f and 0xff are NaN."""
    exponent = (bits >> 3 & 15).astype(np.int32)
    mantissa = (bits & 7).astype(np.float64)
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    size = np.where((bits & 127) == 127, np.nan, size)
    return np.where(bits >> 7 == 1, -size, size).astype(F32)


def fp8(outputs: int, inputs: int, blocks: tuple[int, int], rng):
    """Bits [outputs, inputs] and float32 scales of blocks, of any bits but NaN; and the weights, rounded once."""
    bits = rng.integers(0, 256, (outputs, inputs)).astype(np.uint8)
    bits[(bits & 127) > 0x60] &= 0x9f  # a few would be far larger than the others
    rows, columns = -(-outputs // blocks[0]), -(-inputs // blocks[1])
    scales = (rng.uniform(0.5, 1.5, (rows, columns)) / 8 / np.sqrt(inputs)).astype(F32)
    spread = scales.repeat(blocks[0], 0)[:outputs].repeat(blocks[1], 1)[:, :inputs]
    return bits, scales, e4m3(bits) * spread
