"""Declared sizes that no input implies are hints at most."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.graph.costs.node_costs import model_costs
from onward.graph.shapes.declared import infer_from_inputs
from onward.losses import MSE
from onward.optimizers import SGD

WRONG = {
    "output": ("float[1, 11] p", 'float["k", "n"] q'),
    "value": ('float["k", "n"] p', "float[1, 11] q"),
    "both": ("float[5, 11] p", "float[5, 11] q"),
    "rank of an output": ("float[1, 11, 2] p", 'float["k", "n"] q'),
    "rank of a value": ('float["k", "n"] p', "float[11] q"),
}


def softmax(p: str, q: str) -> onnx.ModelProto:
    """y = sum(softmax(x) * x * ones of the product's shape)."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, "n"] x) => (float[] y, {p}) <{q}> {{
            p = Softmax<axis = -1>(x)
            q = Mul(p, x)
            s = Shape(q)
            ones = ConstantOfShape<value = float[1] {{1.}}>(s)
            r = Mul(q, ones)
            y = ReduceSum<keepdims = 0>(r)
        }}"""
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_declared_sizes_change_no_gradient(name: str) -> None:
    x = np.linspace(-1, 1, 7, dtype=np.float32)[None]
    options = onward.SessionOptions(log_severity_level=4)
    found = []
    for declared in (WRONG[name], ('float[1, "n"] p', 'float[1, "n"] q')):
        extended = onward.gradient(softmax(*declared), "y", "x")
        found.append(onward.InferenceSession(extended, options).run(["x_grad"], {"x": x})[0])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("provider", ["CPUExecutionProvider", "TorchExecutionProvider"])
def test_wrong_declared_sizes_change_no_inference(name: str, provider: str) -> None:
    options = onward.SessionOptions(log_severity_level=4)
    options.own_passes = True
    session = onward.InferenceSession(softmax(*WRONG[name]), options, providers=[provider])
    y, p = session.run(None, {"x": np.ones((1, 7), np.float32)})
    assert p.shape == (1, 7)
    np.testing.assert_allclose(y, 1, rtol=1e-6)


def recurrent(length: Any) -> onnx.ModelProto:
    """An LSTM as torch's exporter writes it: the output has the example's length."""
    op = onward.OpBuilder(opset=17)
    x = op.input("x", "float32", ("time", "batch", 3))
    rng = np.random.default_rng(0)
    w = op.initializer("w", rng.normal(size=(1, 16, 3)).astype(np.float32))
    r = op.initializer("r", rng.normal(size=(1, 16, 4)).astype(np.float32))
    y, _, _ = op.LSTM(x, w, r, hidden_size=4, outputs=3)
    model = ir.to_proto(op.model(y=op.Squeeze(y, [1])))
    dim = model.graph.output[0].type.tensor_type.shape.dim[0]
    dim.dim_value = length
    return model


def test_a_recurrent_model_trains_at_other_lengths_than_declared() -> None:
    session = onward.TrainingSession(recurrent(5), MSE(), SGD(lr=0.1))
    for length in (5, 7, 2):
        x = np.ones((length, 2, 3), np.float32)
        session.step({"x": x, "target": np.zeros((length, 2, 4), np.float32)})
        assert session.predict({"x": x})["y"].shape == (length, 2, 4)


def test_costs_are_of_the_sizes_asked_for() -> None:
    wrong, right = (softmax(*each) for each in (WRONG["both"], ('float[1, "n"] p', "float q")))
    found = [model_costs(ir.from_proto(model), {"n": 7}) for model in (wrong, right)]
    assert [n.cost.flops for n in found[0].nodes] == [n.cost.flops for n in found[1].nodes]


def shapes(model: ir.Model) -> dict[str, str]:
    return {str(y.name): str(y.shape) for node in model.graph for y in node.outputs}


def test_declared_ranks_and_names_fill_unknown_shapes() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float["b", 3] x) => (float["b", 3] y) <float["b", 5, "m"] z> {
            z = own.Unknown(x)
            y = Relu(x)
        }"""
    )
    found = shapes(infer_from_inputs(ir.from_proto(model)))
    assert found == {"z": "[b,None,m]", "y": "[b,3]"}


def test_an_output_keeps_its_own_dimension_name() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float["b", 3] x) => (float["rows", 3] y, float[3, "b"] z) {
            y = Relu(x)
            z = Softmax(x)
        }"""
    )
    assert shapes(infer_from_inputs(ir.from_proto(model))) == {"y": "[rows,3]", "z": "[b,3]"}


def test_a_name_that_a_declared_shape_repeats_is_no_hint() -> None:
    """As torch's older exporter declares the output of a Conv with padding_mode="reflect"."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float["batch", 2] x, int64[2] shape) => (float["batch", "batch"] y)
        <float[2, 2] w = {1., 0., 0., 1.}> {
            z = MatMul(x, w)
            y = Reshape(z, shape)
        }"""
    )
    session = onward.TrainingSession(model, MSE(), SGD(lr=0.1))
    x = np.ones((3, 2), np.float32)
    shape = np.array([3, 2])
    results = session.step({"x": x, "shape": shape, "target": np.zeros((3, 2), np.float32)})
    assert results["loss"] == 1
