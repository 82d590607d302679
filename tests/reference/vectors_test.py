"""Checks strategies.py against values worked out by hand and against Hugging Face logits."""

import math
from pathlib import Path

import numpy as np
import pytest
from coca import coca_logits, collinear
from safetensors.numpy import load_file
from strategies import (
    CASES, MIN_MARGIN, MODELS, Full, Llama, LmInfinite, LongHeads, rope_frequencies, rotate)

GOLDEN = Path(__file__).parent.parent / "golden"
THETA_1 = np.array([1.0])  # head_dim 2, theta 1


def random_qkv(n: int, d: int, seed: int = 7):
    return np.random.default_rng(seed).normal(size=(3, n, d))


# ---- RoPE ---------------------------------------------------------------------------------------


def test_rope_frequencies():
    np.testing.assert_allclose(rope_frequencies(10000.0, 4), [1.0, 0.01])


def test_rotation_is_half_split():
    x = np.array([1.0, 0, 0, 0])
    y = rotate(x, 1, rope_frequencies(10000.0, 4))
    np.testing.assert_allclose(y, [0.540302, 0, 0.841471, 0], atol=1e-6)


def test_rotation_depends_on_distance_only():
    q, k = random_qkv(1, 4)[:2, 0]
    theta = rope_frequencies(10000.0, 4)
    far = rotate(q, 105, theta) @ rotate(k, 102, theta)
    near = rotate(q, 5, theta) @ rotate(k, 2, theta)
    assert abs(far - near) < 1e-12


# ---- LM-Infinite --------------------------------------------------------------------------------

# All q = k = (1, 0), v_j = (j, 0), W = D = 2, row 3: logits (cos 2, cos 1, 1) / sqrt 2.
UNIT = np.tile([1.0, 0.0], (4, 1))
RAMP = np.stack([np.arange(4.0), np.zeros(4)], axis=1)


def test_lm_infinite_weights():
    weights = LmInfinite(G=1, W=2, D=2).weights(3, UNIT, UNIT, THETA_1)
    np.testing.assert_allclose(weights, [0.175790, 0.345710, 0.478500], atol=1e-6)


@pytest.mark.parametrize("strategy, expected", [
    (LmInfinite(G=1, W=2, D=2), 2.126920),
    (LmInfinite(G=0, W=2, D=2), 2.580556),
    (Full(), 2.061223),
])
def test_lm_infinite_output(strategy, expected):
    output = strategy.attend(UNIT, UNIT, RAMP, THETA_1)
    np.testing.assert_allclose(output[3], [expected, 0], atol=1e-6)


def test_lm_infinite_keys():
    keys = LmInfinite(G=1, W=4, D=4).keys(6)
    assert keys == [(0, 4), (3, 3), (4, 2), (5, 1), (6, 0)]


def test_lm_infinite_first_differing_row_is_w_plus_1():
    q, k, v = random_qkv(12, 4)
    theta = rope_frequencies(10000.0, 4)
    error = np.abs(LmInfinite(G=1, W=5, D=5).attend(q, k, v, theta)
                   - Full().attend(q, k, v, theta)).max(axis=1)
    assert error[:6].max() < 1e-12 and error[6] > 1e-3


def test_lm_infinite_ignores_middle_tokens():
    q, k, v = random_qkv(12, 4)
    theta = rope_frequencies(10000.0, 4)
    before = LmInfinite(G=2, W=4, D=4).attend(q, k, v, theta)
    k[5], v[5] = 9, -9
    after = LmInfinite(G=2, W=4, D=4).attend(q, k, v, theta)
    assert np.array_equal(before[9:], after[9:])


# ---- LongHeads ----------------------------------------------------------------------------------


def test_representation_of_a_chunk():
    q = np.zeros((2, 2))
    k = np.array([[1.0, 0], [1, 0]])
    v = np.array([[2.0, 0], [0, 0]])
    c = LongHeads(w=2, K=4, S=8).represent(q, k, v, THETA_1)
    np.testing.assert_allclose(c, [0.807182, 0.352950], atol=1e-6)


def test_representation_of_one_token_is_its_key():
    q, k, v = random_qkv(1, 4)
    c = LongHeads(w=1, K=4, S=4).represent(q, k, v, rope_frequencies(10000.0, 4))
    np.testing.assert_allclose(c, k[0], atol=1e-15)


def test_representation_without_values_is_the_mean_key():
    q, k, v = random_qkv(8, 4)
    theta = rope_frequencies(10000.0, 4)
    c = LongHeads(w=8, K=4, S=32).represent(q, k, 0 * v, theta)
    np.testing.assert_allclose(c, rotate(k, np.arange(8), theta).mean(axis=0), atol=1e-15)


def test_representation_lies_between_the_keys():
    q, k, v = random_qkv(8, 4)
    theta = rope_frequencies(10000.0, 4)
    c = LongHeads(w=8, K=4, S=32).represent(q, k, v, theta)
    local = rotate(k, np.arange(8), theta)
    assert (local.min(axis=0) <= c).all() and (c <= local.max(axis=0)).all()


@pytest.mark.parametrize("own, candidates", [
    (4, [1, 2]), (5, [1, 2, 3]), (6, [1, 2, 3, 4]), (7, [1, 2, 3, 4, 5])])
def test_candidates_exclude_first_previous_and_own(own, candidates):
    assert list(LongHeads(w=2, K=4, S=8).candidates(own)) == candidates


def test_selection_keeps_first_and_previous_and_the_best():
    strategy = LongHeads(w=2, K=4, S=8)
    representations = np.array([[9.0], [1], [3], [2], [9], [9]])
    assert strategy.select(np.array([1.0]), 5, representations) == [0, 2, 4]
    assert strategy.margins == [1.0]


def test_selection_tie_goes_to_the_smaller_index():
    representations = np.array([[0.0], [1], [2], [2], [0], [0]])
    assert LongHeads(w=2, K=4, S=8).select(np.array([1.0]), 5, representations) == [0, 2, 4]


def test_selection_at_the_first_chunks():
    strategy = LongHeads(w=2, K=4, S=0)
    representations = np.zeros((4, 1))
    assert [strategy.select(np.array([1.0]), own, representations) for own in range(4)] == [
        [], [0], [0, 1], [0, 1, 2]]


def test_long_heads_dense_below_s():
    q, k, v = random_qkv(32, 4)
    theta = rope_frequencies(10000.0, 4)
    dense = Full().attend(q, k, v, theta)
    output = LongHeads(w=4, K=4, S=32).attend(q, k, v, theta)
    assert np.abs(output - dense).max() < 1e-12


def test_long_heads_equals_full_while_all_chunks_fit():
    q, k, v = random_qkv(44, 4)
    theta = rope_frequencies(10000.0, 4)
    error = np.abs(LongHeads(w=4, K=8, S=8).attend(q, k, v, theta)
                   - Full().attend(q, k, v, theta)).max(axis=1)
    assert error[:32].max() < 1e-12 and error[32:].min() > 1e-6


def test_long_heads_ignores_values_of_unselected_chunks():
    q, k, v = random_qkv(28, 4)
    theta = rope_frequencies(10000.0, 4)
    strategy = LongHeads(w=4, K=4, S=16)
    before = strategy.attend(q, k, v, theta)[-1]
    unselected = min(set(range(6)) - set(strategy.picked[-1]))
    v[4 * unselected : 4 * unselected + 4] *= 0.5
    changed = LongHeads(w=4, K=4, S=16)
    after = changed.attend(q, k, v, theta)[-1]
    assert changed.picked[-1] == strategy.picked[-1]
    assert np.array_equal(before, after)


# ---- Whole models -------------------------------------------------------------------------------

# numpy reads no bfloat16.
HF_CASES = sorted(p.name for p in (GOLDEN / "llama").iterdir() if not p.name.startswith("bf16"))


@pytest.mark.parametrize("case", HF_CASES)
def test_full_equals_hugging_face(case):
    golden = load_file(GOLDEN / "llama" / case / "golden.safetensors")
    logits = Llama(GOLDEN / "llama" / case).logits(golden["tokens"], Full())
    error = np.abs(logits - golden["logits"]).max()
    print(f"{case}: {error:.2e}")
    assert error <= 1e-4


@pytest.mark.parametrize("strategy", [
    LmInfinite(G=4, W=97, D=97), LongHeads(w=16, K=8, S=16), LongHeads(w=16, K=4, S=97)])
@pytest.mark.parametrize("case", MODELS)
def test_short_documents_equal_full(case, strategy):
    golden = load_file(GOLDEN / "llama" / case / "golden.safetensors")
    model = Llama(GOLDEN / "llama" / case)
    full = model.logits(golden["tokens"], Full())
    assert np.abs(model.logits(golden["tokens"], strategy) - full).max() < 1e-10


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("case, strategy_type, params, num_tokens", CASES)
def test_float32_agrees_with_the_golden_logits(
        model_name, case, strategy_type, params, num_tokens):
    """In particular, no selection flips when everything is computed in float32."""
    golden = load_file(GOLDEN / "strategies" / f"{model_name}_{case}" / "golden.safetensors")
    assert golden["logits"].shape[0] == golden["tokens"].shape[0] == num_tokens
    strategy = strategy_type(**params)
    model = Llama(GOLDEN / "llama" / model_name, dtype=np.float32)
    logits = model.logits(golden["tokens"], strategy)
    assert logits.dtype == np.float32
    error = np.abs(logits - golden["logits"]).max()
    print(f"{model_name}_{case}: {error:.2e}")
    assert error <= 1e-3
    assert min(getattr(strategy, "margins", []), default=math.inf) > 0.9 * MIN_MARGIN


# ---- CoCA: d = 2, theta = 1, q = (1, 2), T = (3, 3) ---------------------------------------------


@pytest.mark.parametrize("form, m, n, expected", [
    ("norm", 1, 0, 8.104535), ("norm", 1, 1, 15), ("norm", 7, 6, 8.104535), ("raw", 0, 0, 15),
    ("raw", 1, 0, 8.104535), ("raw", 1, 1, 16.967618),
])
def test_coca_logits(form, m, n, expected):
    q, t = np.array([1.0, 2.0]), np.array([[3.0, 3.0]])
    np.testing.assert_allclose(coca_logits(q, m, t, np.array([n]), THETA_1, form), expected,
                               atol=1e-6)


def test_coca_keys_are_not_negative():
    np.testing.assert_array_equal(collinear(np.array([1.0, -3.0])), [0, 0])
