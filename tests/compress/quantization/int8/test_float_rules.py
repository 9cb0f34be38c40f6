"""Rewrites of float nodes: the same outputs, fewer or faster nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.quantization.int8.prepare import prepare
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession


def attention(*, axis: int = -1, with_guard_output: bool = False) -> ir.Model:
    """softmax(scores) v, with zeros where a whole row is masked."""
    op = OpBuilder(18)
    scores = op.input("scores", "float32", ("batch", 2, "tokens", "tokens"))
    v = op.input("v", "float32", ("batch", 2, "tokens", 4))
    p = op.Softmax(scores, axis=axis)
    guarded = op.Where(op.IsNaN(p), op.initializer("zero", np.float32(0)), p)
    outputs = {"y": op.MatMul(guarded, v)} | ({"p": guarded} if with_guard_output else {})
    return op.model(**outputs)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_the_guard_of_a_softmax_tests_one_number_of_a_row() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 2, 5, 5)).astype(np.float32)
    scores[0, :, 2] = -np.inf
    scores[1, 0, 1, :3] = -np.inf
    feeds = {"scores": scores, "v": rng.normal(size=(2, 2, 5, 4)).astype(np.float32)}
    model = attention()
    changed = prepare(model)
    (y,), (z,) = (InferenceSession(each).run(None, feeds) for each in (model, changed))
    assert operators(changed).index("MatMul") < operators(changed).index("Where")
    assert not y[0, :, 2].any()
    np.testing.assert_allclose(z, y, rtol=1e-6)


@pytest.mark.parametrize("settings", [{"axis": 2}, {"with_guard_output": True}])
def test_another_softmax_keeps_its_guard(settings: dict[str, Any]) -> None:
    found = operators(prepare(attention(**settings)))
    assert found.index("Where") < found.index("MatMul")


@pytest.mark.parametrize(("behind", "expected"), [("LayerNormalization", "Sum"), ("Relu", "Add")])
def test_only_a_residual_in_front_of_a_layer_norm_becomes_a_sum(behind: str, expected: str) -> None:
    op = OpBuilder(18)
    x = op.input("x", "float32", ("batch", 8))
    gain = [op.initializer("gain", np.ones(8, np.float32))] if behind != "Relu" else []
    y = getattr(op, behind)(op.Add(x, op.Tanh(x)), *gain)
    assert expected in operators(prepare(op.model(y=y)))
