"""Cheap values are computed again in the backward pass, and fewer bytes are saved."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

import onward
from onward.gradients.model import extend
from onward.gradients.split import split
from onward.gradients.table import GRADIENTS
from onward.passes.pipelines import PREPARE
from onward.programs.recompute import recompute_cheap_values


def joint_model() -> tuple[ir.Model, list[str], list[str]]:
    """Two layers with activations of several elementwise nodes; outputs, gradients."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (4, 8))
    for name in ("a", "b"):
        w = op.input(name, "float32", (8, 8))
        h = op.MatMul(x, w)
        x = op.Mul(h, op.Tanh(op.Add(op.Mul(h, op.Mul(h, h)), h)))
    model = PREPARE(op.model(loss=op.ReduceSum(x, keepdims=0)))
    gradients = extend(model, {"loss": None}, ["a", "b", "x"], GRADIENTS)
    return model, ["loss"], list(gradients.values())


def bytes_of(value: ir.Value) -> int | None:
    return None if value.shape is None else 4 * math.prod(value.shape.numpy())


def pieces(model: ir.Model, outputs: list[str], gradients: list[str]) -> list[ir.Model]:
    return [piece.model for piece in split(model, [outputs, gradients])]


def saved(forward: ir.Model, backward: ir.Model) -> int:
    made = {value.name for value in forward.graph.outputs}
    return sum(bytes_of(v) or 0 for v in backward.graph.inputs if v.name in made)


def run(models: list[ir.Model], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    for model in models:
        session = onward.InferenceSession(model)
        names = [value.name for value in session.get_inputs()]
        found = session.run(None, {name: feeds[name] for name in names})
        feeds = {**feeds, **dict(zip((v.name for v in session.get_outputs()), found))}
    return feeds


def test_fewer_bytes_are_saved_for_the_same_gradients() -> None:
    model, outputs, gradients = joint_model()
    plain = pieces(model.clone(), outputs, gradients)
    model = recompute_cheap_values(model, outputs, bytes_of)
    ours = pieces(model, outputs, gradients)
    assert saved(*ours) <= saved(*plain) // 2
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.normal(size=size).astype(np.float32)
        for name, size in {"x": (4, 8), "a": (8, 8), "b": (8, 8)}.items()
    }
    expected, found = run(plain, dict(feeds)), run(ours, dict(feeds))
    for name in gradients:
        np.testing.assert_array_equal(found[name], expected[name])


def test_sums_of_separate_branches_are_saved() -> None:
    """To compute a residual stream again, all sums before it would be needed."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", (4, 8))
    for name in ("a", "b", "c"):
        x = op.Add(x, op.Tanh(op.MatMul(op.Tanh(x), op.input(name, "float32", (8, 8)))))
    model = PREPARE(op.model(loss=op.ReduceSum(op.Mul(x, x), keepdims=0)))
    gradients = extend(model, {"loss": None}, ["a", "b", "c"], GRADIENTS)
    recompute_cheap_values(model, ["loss"], bytes_of)
    _, backward = pieces(model, ["loss"], list(gradients.values()))
    operators = [node.op_type for node in backward.graph if "again" in (node.name or "")]
    assert "Add" not in operators


def test_casts_of_weights_to_fewer_bits_are_saved() -> None:
    """Mixed precision: the backward would cast every weight a second time."""
    op = onward.OpBuilder()
    x = op.input("x", "float16", (4, 8))
    for name in ("a", "b"):
        x = op.Tanh(
            op.MatMul(x, op.Cast(op.input(name, "float32", (8, 8)), to=int(ir.DataType.FLOAT16)))
        )
    loss = op.ReduceSum(op.Cast(x, to=int(ir.DataType.FLOAT)), keepdims=0)
    model = PREPARE(op.model(loss=loss))
    gradients = extend(model, {"loss": None}, ["a", "b"], GRADIENTS)
    recompute_cheap_values(model, ["loss"], bytes_of)
    _, backward = pieces(model, ["loss"], list(gradients.values()))
    assert "a" not in {value.name for value in backward.graph.inputs}
    assert "b" not in {value.name for value in backward.graph.inputs}  # its cast is
