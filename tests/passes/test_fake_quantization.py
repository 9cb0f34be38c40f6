"""Fake quantization: the numbers of DequantizeLinear, with gradients that pass through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onward
from onward.graph.graph_ops import extend
from onward.losses import MSE
from onward.optimizers import SGD
from onward.passes.fake_quantization import QuantizationGrid, best_scales, fake_quantize

Array = np.ndarray[Any, Any]
W = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(7, 12)).astype(np.float32)
GRIDS = [
    QuantizationGrid(low=-127, high=127, axis=1),
    QuantizationGrid(low=-8, high=7, axis=0),
    QuantizationGrid(low=-2, high=1, axis=0, block=4),
    QuantizationGrid(low=-2, high=1, axis=0, block=5),
    QuantizationGrid(low=-8, high=7, axis=1, block=2),
]


def fake(grid: QuantizationGrid) -> Any:
    op = onward.OpBuilder(opset=23)
    x, w = op.input("x", "float32", ("batch", 12)), op.initializer("w", W)
    model = op.model(y=op.MatMul(x, w))
    more = extend(model)
    scale = more.initializer("s", best_scales(W, grid))
    node = model.graph[0]
    node.replace_input_with(1, fake_quantize(more, model, w, scale, grid))
    model.graph.sort()
    return model


def rounded(grid: QuantizationGrid) -> Array:
    scale = grid.spread(best_scales(W, grid), W.shape)
    return np.asarray(grid.to_integers(W / scale) * scale, np.float32)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_weight_is_rounded_to_its_grid(grid: QuantizationGrid) -> None:
    [y] = onward.InferenceSession(fake(grid)).run(None, {"x": X})
    np.testing.assert_allclose(y, X @ rounded(grid), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_gradient_of_a_weight_passes_where_nothing_was_clipped(grid: QuantizationGrid) -> None:
    target = np.zeros((7, 5), np.float32)
    with onward.TrainingSession(fake(grid), MSE(), SGD(lr=0.1), {"trainable": ["w"]}) as session:
        session.run_forward({"x": X, "target": target})
        session.run_backward()
        found = session.get_gradients()["w"]
    steps = np.rint(W / grid.spread(best_scales(W, grid), W.shape))
    inside = (steps >= grid.low) & (steps <= grid.high)
    expected = X.T @ (2 * (X @ rounded(grid)) / target.size) * inside
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_best_scales_are_better_than_the_range(grid: QuantizationGrid) -> None:
    best = best_scales(W, grid)
    rows = np.abs(W).max()
    wide = np.full(best.shape, rows / max(-grid.low, grid.high), np.float32)

    def error(scale: Array) -> float:
        spread = grid.spread(scale, W.shape)
        return float(((grid.to_integers(W / spread) * spread - W) ** 2).sum())

    assert error(best) < error(wide)
