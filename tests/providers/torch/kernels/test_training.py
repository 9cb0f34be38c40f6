"""ONNX's optimizer operators, against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.providers.torch.one_node import Array, run_op

DOMAIN = "ai.onnx.preview.training"


def optimizer(op: str, kinds: int, t: int, dtype: Any, attributes: dict[str, Any]) -> Any:
    """The inputs of an update of two parameters, kind by kind, and its outputs likewise."""
    random = np.random.default_rng(1)
    shapes = [(2, 3), (4,)]
    tensors = [[random.random(shape).astype(dtype) for shape in shapes] for _ in range(kinds)]
    flat = [tensor for kind in tensors for tensor in kind]
    inputs: list[Array] = [np.array(0.1, np.float32), np.array(t, np.int64), *flat]
    outputs = run_op(op, inputs, attributes, 2 * (kinds - 1), opset=1, domain=DOMAIN)
    pairs = [outputs[i : i + 2] for i in range(0, len(outputs), 2)]
    return zip(*tensors), zip(*pairs)


def close(results: tuple[Array, ...], expected: tuple[Any, ...], dtype: Any) -> None:
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == dtype
        assert_allclose(result, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("t", [0, 3])
def test_adam_updates_each_parameter_and_its_moments(t: int, dtype: Any) -> None:
    attributes = {
        "alpha": 0.8,
        "beta": 0.95,
        "epsilon": 1e-2,
        "norm_coefficient": 0.1,
        "norm_coefficient_post": 0.2,
    }
    before, after = optimizer("Adam", 4, t, dtype, attributes)
    rate = 0.1 * np.sqrt(1 - 0.95**t) / (1 - 0.8**t) if t else 0.1
    for (x, g, v, h), results in zip(before, after):
        g = g + 0.1 * x
        v, h = 0.8 * v + 0.2 * g, 0.95 * h + 0.05 * g * g
        close(results, (0.8 * (x - rate * v / (np.sqrt(h) + 1e-2)), v, h), dtype)


@pytest.mark.parametrize("t", [0, 3])
def test_adagrad_slows_down_with_its_squared_gradients(t: int) -> None:
    attributes = {"norm_coefficient": 0.1, "epsilon": 1e-2, "decay_factor": 0.5}
    before, after = optimizer("Adagrad", 3, t, np.float32, attributes)
    for (x, g, h), results in zip(before, after):
        g = g + 0.1 * x
        h = h + g * g
        close(results, (x - 0.1 / (1 + 0.5 * t) * g / (np.sqrt(h) + 1e-2), h), np.float32)


@pytest.mark.parametrize("t", [0, 3])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum_takes_the_whole_gradient_at_its_first_step(t: int, mode: str) -> None:
    attributes = {"norm_coefficient": 0.1, "alpha": 0.9, "beta": 0.4, "mode": mode}
    before, after = optimizer("Momentum", 3, t, np.float32, attributes)
    for (x, g, v), results in zip(before, after):
        g = g + 0.1 * x
        v = 0.9 * v + (0.4 if t else 1) * g
        step = g + 0.9 * v if mode == "nesterov" else v
        close(results, (x - 0.1 * step, v), np.float32)
