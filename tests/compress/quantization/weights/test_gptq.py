"""GPTQ: its error of the outputs is at most that of rounding."""

from __future__ import annotations

import numpy as np
import pytest

from onward.compress.quantization.weights import gptq
from onward.compress.quantization.weights.gptq import invert_factor, round_by_gptq
from onward.compress.quantization.weights.rounding import Inputs, round_matrix
from onward.compress.quantization.weights.scales import round_weights


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("scheme", ["symmetric", "zeros", "offsets"])
def test_gptq_changes_outputs_less_than_rounding(bits: int, scheme: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(0, 0.1, (24, 96)).astype(np.float32)
    x = (rng.normal(size=(400, 12)) @ rng.normal(size=(12, 96))).astype(np.float32)
    x += rng.normal(0, 0.3, x.shape).astype(np.float32)
    factor = invert_factor(x.T @ x)

    def error(rounded: np.ndarray) -> float:  # type: ignore[type-arg]
        return float(((x @ (rounded - w).T) ** 2).sum())

    plain = error(round_weights(w, bits, 32, scheme, search=False).widen())
    assert error(round_by_gptq(w, factor, bits, 32, scheme).widen()) < plain / 2


def test_gptq_leaves_the_given_weights_alone() -> None:
    w = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
    before = w.copy()
    round_by_gptq(w, invert_factor(np.eye(32)), 4, 32, "symmetric")
    assert (w == before).all()


def test_rows_that_are_rounded_in_parts_get_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(40, 64)).astype(np.float32), rng.normal(size=(200, 64))
    factor = invert_factor(x.T @ x)
    whole = round_by_gptq(w, factor, 4, 32, "zeros")
    monkeypatch.setattr(gptq, "_WEIGHTS", 1)
    monkeypatch.setattr(gptq, "_LEAST_ROWS", 16)
    parts = round_by_gptq(w, factor, 4, 32, "zeros")
    np.testing.assert_array_equal(parts.codes, whole.codes)
    np.testing.assert_allclose(parts.widen(), whole.widen(), rtol=1e-6)


def test_the_factor_is_that_of_the_inverse() -> None:
    x = np.random.default_rng(0).normal(size=(100, 16))
    h = x.T @ x
    factor = invert_factor(h).astype(np.float64)
    damped = h + 0.01 * np.diag(h).mean() * np.eye(16)
    np.testing.assert_allclose(factor.T @ factor, np.linalg.inv(damped), atol=1e-6)
    assert np.allclose(factor, np.triu(factor))


@pytest.mark.parametrize("moments", [np.zeros((32, 32)), np.ones((32, 32))])
def test_gptq_takes_inputs_that_are_unused_or_all_the_same(moments: np.ndarray) -> None:  # type: ignore[type-arg]
    w = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
    blocks, _ = round_matrix(w, 4, 16, "symmetric", "gptq", Inputs(moments=moments))
    assert np.isfinite(blocks.widen()).all()
