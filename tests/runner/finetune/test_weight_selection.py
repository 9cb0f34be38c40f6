"""Weights that are chosen by the names of torch's modules, which the exporter has dropped."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.runner.architectures.new_model import new_model
from onward.runner.finetune.weight_selection import known_weights, module_name, select_weights


def exported_model() -> ir.Model:
    """As torch's older exporter writes two layers whose weights it folded or transposed."""
    op = onward.OpBuilder()
    h = op.input("x", "float32", ("batch", 1, 4))
    first = op.initializer("onnx::MatMul_28", np.ones((4, 4), np.float32))
    second = op.initializer("onnx::MatMul_30", np.ones((4, 4), np.float32))
    bias = op.initializer("head.bias", np.ones(4, np.float32))
    model = op.model(y=op.Add(op.MatMul(op.MatMul(h, first), second), bias))
    inner, last = (node for node in model.graph if node.op_type == "MatMul")
    inner.name, last.name = "/encoder/layers/layers.0/linear/MatMul", "/head/MatMul"
    return model


def test_pattern_of_modules_chooses_weights_that_were_renamed() -> None:
    model = exported_model()
    assert select_weights(model, None, ["encoder.*"]).frozen == ("onnx::MatMul_28",)
    assert select_weights(model, ["head.*"], []).trainable == ("head.bias", "onnx::MatMul_30")
    assert select_weights(model, None, ["onnx::MatMul_28"]).frozen == ("onnx::MatMul_28",)


@pytest.mark.parametrize(
    ("weight", "node", "name"),
    [
        ("onnx::Conv_1", "/features/features.0/Conv", "features.0.weight"),
        ("onnx::Conv_1", "/layer1/layer1.0/conv1/Conv", "layer1.0.conv1.weight"),
        ("onnx::Conv_1", "Conv_12", ""),
        ("onnx::Conv_1", "/Conv", ""),
        ("w", "/features/features.0/Conv", ""),
    ],
)
def test_name_of_a_module_is_read_from_the_node(weight: str, node: str, name: str) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(y=op.MatMul(x, op.initializer(weight, np.ones((4, 4), np.float32))))
    next(iter(model.graph)).name = node
    assert module_name(model.graph.initializers[weight]) == name


def test_the_ratio_of_a_dropout_is_no_weight() -> None:
    model = new_model("mlp", features=4, hidden=(5,), classes=3, dropout=0.1)
    assert all(name.endswith(("weight", "bias")) for name in known_weights(model).names)
