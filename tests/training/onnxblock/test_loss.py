"""Losses and their gradients match torch, in every reduction, and far from zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onward.losses.classification import BCEWithLogits
from onward.losses.regression import Huber
from onward.training import onnxblock
from onward.training.onnxblock import loss as losses
from tests.training.nets import float_info, mlp, model_of, names, opened, two_outputs

F = torch.nn.functional
RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3)).astype(np.float32)
TARGET = RNG.uniform(size=(5, 3)).astype(np.float32)
LABELS = np.array([0, 2, 1, 2, 0])
WEIGHT = np.array([1.0, 2.0, 0.5], np.float32)
REDUCTIONS = ["mean", "sum", "none"]


class Training(onnxblock.TrainingBlock):
    """A loss of a parameter: its gradient is the loss's own."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def build(self, output_name: str) -> str:
        return str(self.loss(output_name))


def of_parameter(shape: tuple[int, ...], dtype: Any = np.float32) -> onnx.ModelProto:
    """y = w + 0 x: a loss of y has w's gradients."""
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["z"]),
        helper.make_node("Add", ["w", "z"], ["y"]),
    ]
    weights = {"w": np.zeros(shape, dtype), "zero": np.zeros(1, dtype)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = float_info("x", list(shape), kind), float_info("y", list(shape), kind)
    return model_of(nodes, [x], [y], weights)


def run(block: Any, x: Any, target: Any) -> tuple[Any, Any]:
    """The loss, and its gradient (that of its sum, if it is not reduced)."""
    training = Training(block)
    training.requires_grad("w")
    with onnxblock.base(of_parameter(x.shape, x.dtype)):
        training("y")
    model, _ = training.to_model_proto()
    name = model.graph.input[1].name
    feeds = {"x": np.zeros_like(x), name: target, "w": x}
    feeds |= {"w_grad.accumulation.buffer": np.zeros_like(x), "lazy_reset_grad": np.array([True])}
    loss, gradient = opened(model).run(None, feeds)
    return loss, gradient


def check(block: Any, reference: Any, x: Any, target: Any) -> None:
    loss, gradient = run(block, x, target)
    w = torch.from_numpy(x).requires_grad_()
    expected = reference(w, torch.from_numpy(target))
    expected.sum().backward()
    np.testing.assert_allclose(
        loss.reshape(expected.shape), expected.detach(), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(gradient, w.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_mse_and_l1(reduction: str) -> None:
    mse, l1 = losses.MSELoss(reduction), losses.L1Loss(reduction)
    check(mse, lambda x, t: F.mse_loss(x, t, reduction=reduction), X, TARGET)
    check(l1, lambda x, t: F.l1_loss(x, t, reduction=reduction), X, TARGET)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("pos_weight", [None, np.array([3.0, 1.0, 0.5])])
def test_bce_with_logits(reduction: str, weight: Any, pos_weight: Any) -> None:
    block = losses.BCEWithLogitsLoss(weight, reduction, pos_weight)
    w, p = (
        None if v is None else torch.tensor(v, dtype=torch.float32) for v in (weight, pos_weight)
    )

    def reference(x: Any, t: Any) -> Any:
        return F.binary_cross_entropy_with_logits(x, t, w, reduction=reduction, pos_weight=p)

    check(block, reference, X, TARGET)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("pos_weight", [None, np.array(2.0, np.float32)])
def test_bce_with_logits_is_finite_far_from_zero_and_smooth_there(
    pos_weight: Any, dtype: Any
) -> None:
    far = np.array([[-200.0, 200.0, 88.0, 0], [-1e4, 1e4, -88.0, 0]], dtype)
    target = np.array([[1, 0, 0, 1], [0, 1, 1, 0]], dtype)
    p = None if pos_weight is None else torch.from_numpy(pos_weight)

    def reference(x: Any, t: Any) -> Any:
        return F.binary_cross_entropy_with_logits(x, t, pos_weight=p)

    check(losses.BCEWithLogitsLoss(pos_weight=pos_weight), reference, far, target)
    ours = BCEWithLogits(pos_weight=pos_weight)
    check(losses.LossBlock(ours), reference, far, target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, WEIGHT, [1, 2, 0.5]])
@pytest.mark.parametrize("ignored", [None, 2])
def test_cross_entropy(reduction: str, weight: Any, ignored: int | None) -> None:
    block = losses.CrossEntropyLoss(weight, reduction, ignored)
    w = None if weight is None else torch.tensor(weight)
    index = -100 if ignored is None else ignored

    def reference(x: Any, t: Any) -> Any:
        return F.cross_entropy(x, t, w, ignore_index=index, reduction=reduction)

    check(block, reference, X, LABELS)


def test_cross_entropy_of_more_axes() -> None:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    check(losses.CrossEntropyLoss(), F.cross_entropy, x, RNG.integers(0, 3, (2, 4)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_is_a_single_number(reduction: str) -> None:
    for block in (losses.MSELoss, losses.L1Loss, losses.BCEWithLogitsLoss):
        assert run(block(reduction=reduction), X, TARGET)[0].shape == ()
    assert run(losses.CrossEntropyLoss(reduction=reduction), X, LABELS)[0].shape == ()


@pytest.mark.parametrize(
    "block", [losses.MSELoss, losses.L1Loss, losses.BCEWithLogitsLoss, losses.CrossEntropyLoss]
)
def test_an_unknown_reduction_is_refused(block: Any) -> None:
    law = "Reduction median not supported.\nit must be one of mean, sum, none"
    with pytest.raises(RuntimeError, match=law):
        block(reduction="median")


def test_existing_target_is_used() -> None:
    block = losses.MSELoss()
    with onnxblock.base(two_outputs()) as handle:
        block("a", "b")
    assert names(handle.model.graph.input) == ["x"]


def test_a_target_may_have_been_added_by_hand() -> None:
    class Loss(onnxblock.Block):
        def build(self, name: str) -> str:
            labels = onnxblock.blocks.InputLike(name)("labels")
            kind = onnxblock.blocks.Cast(TensorProto.INT64)(onnxblock.blocks.ReduceSum()(labels))
            del kind  # a custom input
            return str(losses.MSELoss()(name, labels))

    with onnxblock.base(mlp()) as handle:
        Loss()("output")
    assert names(handle.model.graph.input) == ["input", "labels"]


def test_two_losses_have_separate_targets() -> None:
    with onnxblock.base(two_outputs()) as handle:
        losses.CrossEntropyLoss()("a", labels_name="labels_a")
        losses.MSELoss()("b", target_name="target_b")
    inputs = handle.model.graph.input
    assert names(inputs) == ["x", "labels_a", "target_b"]
    assert inputs[1].type.tensor_type.elem_type == TensorProto.INT64
    assert [d.dim_param for d in inputs[1].type.tensor_type.shape.dim] == ["batch"]


def test_a_loss_reads_values_between_inputs_and_outputs() -> None:
    with onnxblock.base(mlp()) as handle:
        losses.MSELoss()("hidden")
    target = handle.model.graph.input[1].type.tensor_type.shape.dim
    assert [target[0].dim_param, target[1].dim_value] == ["batch", 5]


def test_missing_value_is_a_lookup_error() -> None:
    with onnxblock.base(mlp()):
        with pytest.raises(LookupError, match="Could not find input or output with name nothing"):
            losses.MSELoss()("nothing")
        with pytest.raises(LookupError, match="The provided name nothing is not a value"):
            losses.CrossEntropyLoss()("nothing")


def test_cross_entropy_needs_classes() -> None:
    law = r"cross entropy reads scores of .*'y' has rank 1"
    with onnxblock.base(of_parameter((3,))), pytest.raises(RuntimeError, match=law):
        losses.CrossEntropyLoss()("y")


def test_loss_of_onward_is_a_block() -> None:
    check(losses.LossBlock(Huber()), F.huber_loss, X * 3, TARGET)


def test_weights_have_the_type_of_the_input() -> None:
    training = Training(losses.BCEWithLogitsLoss(weight=WEIGHT, pos_weight=np.float32(2)))
    with onnxblock.base(mlp(dtype=np.float64)):
        training("output")
    loss, *_ = opened(training.to_model_proto()[1]).get_outputs()
    assert loss.type == "tensor(double)"


def test_eval_graph_runs_in_double_precision() -> None:
    training = Training(losses.LossBlock(BCEWithLogits()))
    with onnxblock.base(mlp(dtype=np.float64)):
        training("output")
    for model in training.to_model_proto():
        assert "Softplus" not in {node.op_type for node in model.graph.node}
        opened(model)
