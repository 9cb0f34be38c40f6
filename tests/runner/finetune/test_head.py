"""A new head: the last linear layer of a model with another number of outputs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.losses import CrossEntropy
from onward.optimizers import AdamW
from onward.runner.finetune.head import add_head, new_head
from tests.runner.finetune.finetune_models import conv_net, random, run


def gemm(op: Any, h: ir.Value) -> ir.Value:
    w, b = op.initializer("last.w", random(4, 7)), op.initializer("last.b", random(7))
    return op.Gemm(h, w, b)  # type: ignore[no-any-return]


def gemm_transposed(op: Any, h: ir.Value) -> ir.Value:
    w, b = op.initializer("last.w", random(7, 4)), op.initializer("last.b", random(7))
    return op.Sigmoid(op.Gemm(h, w, b, transB=1))  # type: ignore[no-any-return]


def matmul(op: Any, h: ir.Value) -> ir.Value:
    return op.Softmax(op.MatMul(h, op.initializer("last.w", random(4, 7))))  # type: ignore[no-any-return]


def matmul_add(op: Any, h: ir.Value) -> ir.Value:
    w = op.Identity(op.Transpose(op.initializer("last.w", random(7, 4)), perm=[1, 0]))
    b = op.initializer("last.b", random(7))
    return op.Softmax(op.Add(b, op.MatMul(h, w)))  # type: ignore[no-any-return]


def squeezenet(op: Any, h: ir.Value) -> ir.Value:
    """A 1x1 convolution, then global pooling; the shape of the result is a constant."""
    image = op.Reshape(h, [-1, 1, 2, 2])
    w, b = op.initializer("last.w", random(7, 1, 1, 1)), op.initializer("last.b", random(7))
    pooled = op.GlobalAveragePool(op.Relu(op.Conv(op.Dropout(image), w, b)))
    return op.Softmax(op.Reshape(pooled, [-1, 7]))  # type: ignore[no-any-return]


def computed_shape(op: Any, h: ir.Value) -> ir.Value:
    """A Reshape to a computed batch and a constant number of classes."""
    shape = op.Concat(op.Shape(h, start=0, end=1), np.array([7]), axis=0)
    return op.Reshape(gemm(op, h), shape)  # type: ignore[no-any-return]


HEADS = {
    "gemm": gemm,
    "gemm_transposed": gemm_transposed,
    "matmul": matmul,
    "matmul_add": matmul_add,
    "squeezenet": squeezenet,
    "computed_shape": computed_shape,
}


def classifier(head: Any) -> ir.Model:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    h = op.Tanh(op.MatMul(x, op.initializer("first.w", random(4, 4))))
    return op.model(y=head(op, h))


@pytest.mark.parametrize("name", HEADS)
def test_the_last_layer_is_replaced(name: str) -> None:
    model = classifier(HEADS[name])
    head = new_head(model, 3)
    biases = () if name == "matmul" else ("head.bias",)
    assert head.names == ("head.weight", *biases)
    assert not {"last.w", "last.b"} & set(head.model.graph.initializers)
    y = head.model.graph.outputs[0]
    assert y.name == "y" and y.shape is not None and list(y.shape)[1:] == [3]
    kinds = [n.op_type for n in model.graph if n.op_type not in ("Transpose", "Identity")]
    assert [node.op_type for node in head.model.graph] == kinds
    assert run(head.model, x=random(5, 4))[0].shape == (5, 3)
    assert run(model, x=random(5, 4))[0].shape == (5, 7)  # the model itself is as it was


def test_only_the_head_trains() -> None:
    head = new_head(classifier(gemm_transposed), 3)
    options = onward.TrainingOptions(trainable=head.names)
    session = onward.TrainingSession(head.model, CrossEntropy(), AdamW(lr=0.1), options)
    feeds = {"x": random(6, 4), "labels": np.arange(6) % 3}
    losses = [float(session.step(feeds)["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert list(session.parameters) == list(head.names)


def test_weights_are_of_the_seed_and_of_torchs_size() -> None:
    first, again, other = (
        new_head(classifier(gemm), 500, seed=seed).model.graph.initializers["head.weight"]
        for seed in (1, 1, 2)
    )
    w = array(first)
    np.testing.assert_array_equal(w, array(again))
    assert not np.array_equal(w, array(other))
    assert 0.49 < np.abs(w).max() <= 0.5  # 1 / sqrt(4)


def array(value: ir.Value) -> Any:
    assert value.const_value is not None
    return value.const_value.numpy()


def test_a_name_that_stays_in_use_is_not_taken() -> None:
    op = onward.OpBuilder()
    x, w = op.input("x", "float32", (2, 4)), op.initializer("head.weight", random(4, 4))
    model = op.model(y=op.MatMul(op.MatMul(x, w), w))
    head = new_head(model, 3)
    assert head.names == ("head.weight_1",) and run(head.model, x=random(2, 4))[0].shape == (2, 3)


def test_another_output_and_what_depends_on_the_layer() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    scores = op.MatMul(x, op.initializer("w", random(4, 7)))
    model = op.model(hidden=op.Neg(x), scores=scores, chances=op.Softmax(scores))
    head = new_head(model, 2, output="scores").model
    sizes = [[*value.shape][1] for value in head.graph.outputs if value.shape is not None]
    assert sizes == [4, 2, 2]
    with pytest.raises(OptionError, match="no output 'score'\ndid you mean 'scores'"):
        new_head(model, 2, output="score")
    message = "output 'hidden' has no last linear layer: going back from it, Neg (node "
    with pytest.raises(OptionError, match=re.escape(message)):
        new_head(model, 2)


def test_text_models_keep_their_other_axes() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", "time", 4))
    y = op.Add(op.MatMul(x, op.initializer("w", random(4, 7))), op.initializer("b", random(7)))
    head = new_head(op.model(y=y), 2).model
    assert str(head.graph.outputs[0].shape) == "[batch,time,2]"


@pytest.mark.parametrize("outputs", [0, 2.5, "3", True])
def test_outputs_must_be_a_number(outputs: Any) -> None:
    with pytest.raises(OptionError, match="outputs must be a whole number, at least 1"):
        new_head(conv_net(), outputs)


def test_a_layer_behind_the_features_of_a_model() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 4))
    model = op.model(norm=op.ReduceSum(x), features=op.Tanh(x))
    head = add_head(model, 3, output="features")
    assert [value.name for value in head.model.graph.outputs] == ["norm", "scores"]
    tensors = head.model.graph.initializers
    expected = np.tanh(random(2, 4)) @ array(tensors["head.weight"])
    np.testing.assert_allclose(run(head.model, x=random(2, 4))[1], expected, atol=1e-6)
    model.graph.outputs[1].shape = ir.Shape(["batch", "size"])  # as exporters declare sizes
    again = add_head(model, 3, output="features").model
    assert str(again.graph.outputs[1].shape) == "[batch,3]"
    op = onward.OpBuilder()
    counts = op.model(counts=op.Shape(op.input("x", "float32", ("batch", 4))))
    with pytest.raises(
        OptionError, match=r"'counts' cannot have a layer behind it.*\nname another"
    ):
        add_head(counts, 3)


def test_a_weight_that_is_reshaped_as_in_mnist_8() -> None:
    op = onward.OpBuilder(opset=8)
    x = op.input("x", "float32", ("batch", 4))
    w = op.Reshape(op.initializer("w", random(2, 2, 7)), [4, 7])
    model = op.model(y=op.Add(op.MatMul(x, w), op.initializer("b", random(1, 7))))
    model.ir_version = 3  # which lists initializers as inputs
    model.graph.inputs.extend(model.graph.initializers.values())
    head = new_head(model, 3)
    assert [value.name for value in head.model.graph.inputs] == ["x"]
    assert run(head.model, x=random(2, 4))[0].shape == (2, 3)
