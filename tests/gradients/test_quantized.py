"""Quantisation straight through, held against the formula in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onward
from onward.gradients.model import gradient


def fake_quantize(x: Any, s: Any, zero: int, low: int, high: int, dy: Any) -> tuple[Any, Any]:
    """y = (clip(round(x / s) + z) - z) s: dx is dy inside, ds the learned step size's."""
    steps = x / s + zero
    inside = (steps >= low) & (steps <= high)
    q = np.clip(np.round(x / s) + zero, low, high)
    dx = np.where(inside, dy, 0)
    ds = dy * (q - zero) - np.where(inside, dy * x / s, 0)
    return dx, ds


@pytest.mark.parametrize(("dtype", "zero"), [(np.int8, 3), (np.uint8, 120), (np.int16, 0)])
@pytest.mark.parametrize("each", [False, True])
def test_rounding_counts_as_the_identity_and_clipping_does_not(
    dtype: Any, zero: int, each: bool
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(6, 4)) * 3).astype(np.float32)
    s = np.array([0.02, 0.03, 0.01, 0.04] if each else 0.02, np.float32)
    dy = rng.normal(size=x.shape).astype(np.float32)
    op = onward.OpBuilder(opset=21)
    xs, ss = op.input("x", "float32", x.shape), op.input("s", "float32", s.shape)
    point = np.full(s.shape, zero, dtype)
    q = op.QuantizeLinear(xs, ss, point, axis=1)
    model = gradient(op.model(y=op.DequantizeLinear(q, ss, point, axis=1)), {"y": "dy"}, ["x", "s"])
    session = onward.InferenceSession(model)
    dx, ds = session.run(["x_grad", "s_grad"], {"x": x, "s": s, "dy": dy})
    limits = np.iinfo(dtype)
    right_dx, each_ds = fake_quantize(x, s, zero, limits.min, limits.max, dy)
    np.testing.assert_allclose(dx, right_dx, rtol=1e-6)
    right_ds = each_ds.sum(0) if each else each_ds.sum()
    np.testing.assert_allclose(ds, right_ds, rtol=1e-3, atol=1e-2)
