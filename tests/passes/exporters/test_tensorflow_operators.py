"""Operators of TensorFlow that tf2onnx leaves in a model."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import onward
from onward import losses, optimizers
from onward.errors import MissingGradient


def gelu_model(opset: int, operator: str = "Erfc", dtype: int = TensorProto.FLOAT) -> ir.Model:
    """x W * 0.5 * erfc(-x W / sqrt(2)), then a linear layer, as Keras' Gelu is written."""
    rng = np.random.default_rng(0)
    element = helper.tensor_dtype_to_np_dtype(dtype)
    tensors = {
        "w": rng.normal(size=(4, 5)),
        "v": rng.normal(size=(5, 2)),
        "half": np.array(0.5),
        "root": np.array(1 / math.sqrt(2)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Neg", ["h"], ["minus"]),
        helper.make_node("Mul", ["minus", "root"], ["scaled"]),
        helper.make_node(operator, ["scaled"], ["e"], name="Gelu/Erfc"),
        helper.make_node("Mul", ["e", "half"], ["share"]),
        helper.make_node("Mul", ["h", "share"], ["g"]),
        helper.make_node("MatMul", ["g", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("x", dtype, ["rows", 4])],
        [helper.make_tensor_value_info("y", dtype, ["rows", 2])],
        [onnx.numpy_helper.from_array(a.astype(element), name) for name, a in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return ir.from_proto(model)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.DOUBLE])
@pytest.mark.parametrize("opset", [9, 12, 18])
def test_erfc_runs(opset: int, dtype: int) -> None:
    model = gelu_model(opset, dtype=dtype)
    weights = {name: v.const_value.numpy() for name, v in model.graph.initializers.items()}  # type: ignore[union-attr]
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(weights["w"].dtype)
    providers = ["TorchExecutionProvider"] if dtype == TensorProto.DOUBLE else None
    [y] = onward.InferenceSession(model, providers=providers).run(None, {"x": x})
    h = x @ weights["w"]
    expected = (h * 0.5 * np.vectorize(math.erfc)(-h / math.sqrt(2))) @ weights["v"]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_erfc_trains() -> None:
    session = onward.TrainingSession(gelu_model(12), losses.MSE(), optimizers.Adam(lr=0.05))
    rng = np.random.default_rng(2)
    names = session.input_names
    feeds = {
        names[0]: rng.normal(size=(16, 4)).astype(np.float32),
        names[1]: rng.normal(size=(16, 2)).astype(np.float32),
    }
    found = [float(session.step(feeds)["loss"]) for _ in range(60)]
    assert found[-1] < 0.5 * found[0]


def test_an_unknown_operator_is_named_and_not_what_follows_it() -> None:
    with pytest.raises(MissingGradient, match=r"no gradient rule for ai.onnx::Lgamma .*Gelu/Erfc"):
        onward.TrainingSession(gelu_model(12, "Lgamma"), losses.MSE(), optimizers.SGD(lr=0.1))
