"""Ranks that show when shapes are folded, and what folding must leave alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onward.gradients.computed_ranks import infer_computed_ranks
from onward.gradients.model import gradient
from onward.passes.pipelines import PREPARE

# How long the shape is, and so y's rank, shows when the sum is folded
VAGUE = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 6] x) => (float[1] s)
    <float[6] w = {1, 2, 3, 4, 5, 6}, int64[3] asked = {3, 4, -1}, int64 zero = {0},
     int64 one = {1}, int64[1] unit = {1}>
    {
        v = Exp(w)
        h = Identity(x)
        xv = Mul(h, v)
        positive = Greater(asked, zero)
        ones = Cast<to = 7>(positive)
        few = ReduceSum<keepdims = 0>(ones)
        many = Range(zero, few, one)
        kept = Gather(asked, many)
        y = Reshape(xv, kept)
        yy = Mul(y, y)
        a = ReduceSum<keepdims = 0>(yy)
        s = Reshape(a, unit)
    }
"""
X = np.arange(12, dtype=np.float32).reshape(2, 6)
W = np.arange(1, 7, dtype=np.float32)


def vague() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(VAGUE))


def made(model: ir.Model) -> dict[str, ir.Value]:
    return {str(value.name): value for node in model.graph for value in node.outputs}


def test_a_computed_rank_is_inferred() -> None:
    model = PREPARE(vague())
    assert made(model)["y"].shape is None
    infer_computed_ranks(model, ["s"], ["w"])
    shape = made(model)["y"].shape
    assert shape is not None and shape.numpy() == (3, 4)


def test_parameters_are_initializers_again_afterwards() -> None:
    model = PREPARE(vague())
    infer_computed_ranks(model, ["s"], ["w"])
    assert "v" in made(model)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in model.graph.outputs] == ["s"]


def test_a_model_whose_ranks_are_known_is_left_as_it_is() -> None:
    model = PREPARE(vague())
    infer_computed_ranks(model, ["s"], ["w"])
    model.graph.append(ir.node("Neg", [made(model)["y"]]))  # unused
    before = list(model.graph)
    infer_computed_ranks(model, ["s"], ["w"])
    assert list(model.graph) == before


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("w", (2 * (X * np.exp(W)) * X * np.exp(W)).sum(0)),
        ("v", (2 * (X * np.exp(W)) * X).sum(0)),
        ("x", 2 * X * np.exp(W) ** 2),
        ("h", 2 * X * np.exp(W) ** 2),
        ("xv", 2 * X * np.exp(W)),
    ],
)
def test_gradients_of_intermediate_values_with_computed_ranks(
    name: str, wanted: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> None:
    """Without a cut, h would be an Identity that goes, and v would be folded away."""
    extended = gradient(vague(), "s", name)
    assert [value.name for value in extended.graph.inputs] == ["x"]
    session = onnxruntime.InferenceSession(ir.to_proto(extended).SerializeToString())
    [found] = session.run([f"{name}_grad"], {"x": X})
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_an_intermediate_output_with_computed_ranks() -> None:
    extended = gradient(vague(), {"xv": "d"}, "x")
    session = onnxruntime.InferenceSession(ir.to_proto(extended).SerializeToString())
    [found] = session.run(["x_grad"], {"x": X, "d": np.ones_like(X)})
    np.testing.assert_allclose(found, np.broadcast_to(np.exp(W), X.shape), rtol=1e-5)
