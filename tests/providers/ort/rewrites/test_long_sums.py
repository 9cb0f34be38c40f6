"""Sums of many numbers on onnxruntime are exact to rounding: losses, norms of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.losses import MSE
from onward.optimizers import LAMB, SGD
from onward.providers.ort.rewrites.faster_forms import add_in_parts
from tests.passes.one_graph import built, left_after

SQUARES = ["ReduceSum", "Reshape", "Scan"]


@pytest.mark.parametrize(
    ("operator", "shape", "left"),
    [
        ("ReduceMean", (300, 257), ["ReduceMean", "ReduceMean"]),
        ("ReduceSum", ("n", "t", 64, 1), ["ReduceSum", "ReduceSum"]),
        ("ReduceMean", ("n", 10), ["ReduceMean"]),
        ("ReduceMean", ("n",), ["ReduceMean"]),
        ("ReduceSumSquare", (512, 1024), SQUARES),
        ("ReduceL2", (512, 1024), [*SQUARES, "Sqrt"]),
        ("ReduceSumSquare", (512, 512), ["ReduceSumSquare"]),
        ("ReduceSumSquare", ("n", 1024), ["ReduceSumSquare"]),
        ("ReduceSumSquare", (524309,), ["ReduceSumSquare"]),  # a prime number
    ],
)
def test_sums_of_many_numbers_are_sums_of_parts(operator: str, shape: Any, left: list[str]) -> None:
    model = built(lambda op, x: getattr(op, operator)(x, keepdims=0), shape)
    nodes = [node.op_type for node in add_in_parts(model).graph if node.op_type != "Constant"]
    assert sorted(nodes) == left


def test_sums_of_some_axes_stay() -> None:
    for settings in ({"keepdims": 1}, {"keepdims": 0, "noop_with_empty_axes": 1}):
        model = built(lambda op, x, s=settings: op.ReduceSum(x, **s), (300, 257))
        assert len(add_in_parts(model).graph) == 1
    model = built(lambda op, x: op.ReduceSum(x, [0], keepdims=0), (300, 257))
    assert left_after(model, add_in_parts) == ["ReduceSum"]


def scaled_images() -> tuple[ir.Model, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    x = op.input("x", "float32", ("batch", 3, 256, 256))
    y = op.Mul(x, op.initializer("w", np.ones((1, 3, 1, 1), np.float32)))
    x, target = (rng.normal(size=(8, 3, 256, 256)).astype(np.float32) for _ in range(2))
    return op.model(y=y), x, target


@pytest.mark.parametrize("method", ["step", "evaluate"])
def test_the_loss_of_large_images_is_exact(method: str) -> None:
    model, x, target = scaled_images()
    session = onward.TrainingSession(model, MSE(), SGD(lr=0.0))
    loss = getattr(session, method)({"x": x, "target": target})["loss"]
    expected = np.square(x.astype(np.float64) - target).mean()
    np.testing.assert_allclose(float(loss), expected, rtol=1e-6)


def large_matrix(optimizer: Any, options: Any) -> tuple[onward.TrainingSession, Any, Any]:
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    w = rng.normal(0, 0.05, (1024, 2048)).astype(np.float32)
    y = op.MatMul(op.input("x", "float32", ("batch", 1024)), op.initializer("w", w))
    session = onward.TrainingSession(op.model(y=y), MSE(), optimizer, options)
    x, target = (rng.normal(size=(4, n)).astype(np.float32) for n in (1024, 2048))
    return session, w, {"x": x, "target": target}


def test_the_norm_of_a_large_gradient_is_exact() -> None:
    session, w, feeds = large_matrix(SGD(lr=1.0), {"clip_norm": 1e-3})
    session.step(feeds)
    x, target = (feeds[name].astype(np.float64) for name in ("x", "target"))
    gradient = x.T @ (x @ w - target) * 2 / target.size
    np.testing.assert_allclose(session.gradient_norm, np.linalg.norm(gradient), rtol=2e-6)


def test_lamb_finds_the_exact_length_of_a_large_matrix() -> None:
    session, w, feeds = large_matrix(LAMB(lr=0.01), {})
    session.step(feeds)
    change = session.parameters["w"].astype(np.float64) - w  # lr |w| long
    expected = 0.01 * np.linalg.norm(w.astype(np.float64))
    np.testing.assert_allclose(np.linalg.norm(change), expected, rtol=3e-6)
