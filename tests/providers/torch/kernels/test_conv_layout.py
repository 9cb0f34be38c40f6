"""Convolutions that Inductor compiles for a CPU: other layouts in memory, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import losses, optimizers

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "images": ((4, 3, 9, 9), (6, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "groups": ((4, 6, 8, 8), (6, 2, 3, 3), {"group": 3}),
    "uneven pads": ((4, 3, 8, 8), (4, 3, 2, 2), {"pads": [0, 0, 1, 1]}),
}


def network(image: tuple[int, ...], kernel: tuple[int, ...], settings: dict[str, Any]) -> ir.Model:
    """Conv, Relu, a 1x1 Conv whose input the backward pass reads, and means as scores."""
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    x = op.input("x", "float32", ("batch", *image[1:]))
    w = op.initializer("w", rng.normal(size=kernel).astype(np.float32))
    b = op.initializer("b", rng.normal(size=kernel[:1]).astype(np.float32))
    ones = (1,) * (len(image) - 2)
    v = op.initializer("v", rng.normal(size=(4, kernel[0], *ones)).astype(np.float32))
    h = op.Conv(op.Relu(op.Conv(x, w, b, **settings)), v)
    axes = np.arange(2, len(image))
    return op.model(scores=op.ReduceMean(h, axes, keepdims=0))


@pytest.mark.parametrize("case", CASES)
def test_compiled_convolutions_train_as_eager_ones(case: str) -> None:
    image, kernel, settings = CASES[case]
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.normal(size=image).astype(np.float32),
        "labels": rng.integers(0, 4, image[0]),
    }

    def trained(provider: str) -> tuple[list[float], dict[str, Any]]:
        session = onward.TrainingSession(
            network(image, kernel, settings),
            losses.CrossEntropy(),
            optimizers.SGD(lr=0.1),
            providers=[(provider, {"device": "cpu"})],
        )
        seen = [float(session.step(feeds)["loss"]) for _ in range(4)]
        return seen, {name: np.asarray(session.parameters[name]) for name in ("w", "b", "v")}

    ours, weights = trained("InductorExecutionProvider")
    wanted, expected = trained("TorchExecutionProvider")
    assert ours == pytest.approx(wanted, rel=1e-5)
    for name, weight in expected.items():
        np.testing.assert_allclose(weights[name], weight, rtol=1e-4, atol=1e-6, err_msg=name)
