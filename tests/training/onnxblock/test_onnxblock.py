"""ForwardBlock and TrainingBlock: their models, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onward.training.onnxblock as onnxblock
from tests.training.nets import (
    arrays,
    convolutional,
    float_info,
    mlp,
    model_of,
    names,
    opened,
    two_outputs,
)


class Forward(onnxblock.ForwardBlock):
    def __init__(self) -> None:
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, output_name: str) -> Any:
        return self.loss(output_name)


class Training(onnxblock.TrainingBlock):
    def __init__(self) -> None:
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, output_name: str) -> Any:
        return self.loss(output_name), output_name


class Weighted(onnxblock.Block):
    """The peer's documented example: 0.4 of one loss and 0.6 of another."""

    def __init__(self) -> None:
        self._loss1 = onnxblock.loss.MSELoss()
        self._loss2 = onnxblock.loss.MSELoss()
        self._w1 = onnxblock.blocks.Constant(0.4)
        self._w2 = onnxblock.blocks.Constant(0.6)
        self._add = onnxblock.blocks.Add()
        self._mul = onnxblock.blocks.Mul()

    def build(self, name1: str, name2: str) -> Any:
        return self._add(
            self._mul(self._w1(), self._loss1(name1, target_name="target1")),
            self._mul(self._w2(), self._loss2(name2, target_name="target2")),
        )


def test_forward_block_has_only_its_outputs() -> None:
    block = Forward()
    with onnxblock.base(mlp()) as handle:
        output = block("output")
    model = block.to_model_proto()
    assert names(model.graph.output) == [output]
    assert names(handle.model.graph.output) == [output]
    assert names(model.graph.input) == ["input", "labels"]
    x, labels = np.ones((2, 4), np.float32), np.array([0, 1])
    (loss,) = opened(model).run(None, {"input": x, "labels": labels})
    scores = opened(mlp()).run(None, {"input": x})[0]
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(labels))
    assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_a_training_block_gives_two_models_and_the_parameters() -> None:
    model, block = mlp(), Training()
    for tensor in model.graph.initializer:
        block.requires_grad(tensor.name)
    block.requires_grad("fc1.bias", False)
    with onnxblock.base(model) as handle:
        result = block(*[output.name for output in model.graph.output])
        training, evaluation = block.to_model_proto()
        trainable, frozen = block.parameters()
    assert isinstance(training, onnx.ModelProto) and isinstance(evaluation, onnx.ModelProto)
    assert result[1] == "output"
    assert names(handle.model.graph.output) == names(training.graph.output)
    assert names(training.graph.output)[:2] == list(result)
    assert names(trainable) == ["fc1.weight", "fc2.weight", "fc2.bias"]
    assert names(frozen) == ["fc1.bias"]
    given = arrays(model.graph.initializer)
    for tensor in trainable:
        same = np.frombuffer(tensor.raw_data, np.float32).reshape(tuple(tensor.dims))
        assert (same == given[tensor.name]).all()
    onnx.checker.check_model(training, full_check=True)
    onnx.checker.check_model(evaluation, full_check=True)


def test_by_default_nothing_requires_a_gradient() -> None:
    block = Training()
    with onnxblock.base(mlp()):
        block("output")
    assert block.parameters() == ([], [])
    training, _ = block.to_model_proto()
    assert names(training.graph.input) == ["input", "labels", "lazy_reset_grad"]


def test_inputs_may_require_gradients() -> None:
    block = Training()
    block.requires_grad("input")
    with onnxblock.base(mlp()):
        block("output")
    training, _ = block.to_model_proto()
    assert "input_grad.accumulation.buffer" in names(training.graph.input)
    assert "input_grad.accumulation.out" in names(training.graph.output)
    assert block.parameters() == ([], [])
    x, labels = np.ones((2, 4), np.float32), np.array([0, 1])
    feeds = {"input": x, "labels": labels, "lazy_reset_grad": np.array([True])}
    feeds["input_grad.accumulation.buffer"] = np.full_like(x, np.nan)
    assert np.isfinite(opened(training).run(None, feeds)[2]).all()


def test_a_subclass_need_not_call_the_constructor() -> None:
    class Bare(onnxblock.TrainingBlock):
        def __init__(self) -> None:
            self.loss = onnxblock.loss.MSELoss()

        def build(self, output_name: str) -> Any:
            return self.loss(output_name)

    class BareForward(onnxblock.ForwardBlock):
        def __init__(self) -> None:
            pass

        def build(self, output_name: str) -> Any:
            return onnxblock.blocks.Neg()(output_name)

    block, forward = Bare(), BareForward()
    with pytest.raises(RuntimeError):
        forward.to_model_proto()
    block.requires_grad("fc1.bias")
    with onnxblock.base(mlp()):
        block("output")
    with onnxblock.base(mlp()):
        forward("output")
    assert names(block.parameters()[0]) == ["fc1.bias"]
    assert forward.to_model_proto().graph.node[-1].op_type == "Neg"


def test_weighted_losses_of_two_outputs() -> None:
    class Both(onnxblock.TrainingBlock):
        def __init__(self) -> None:
            super().__init__()
            self.loss = Weighted()

        def build(self, *output_names: str) -> Any:
            return self.loss(*output_names)

    model, block = two_outputs(), Both()
    block.requires_grad("wa")
    block.requires_grad("wb")
    with onnxblock.base(model):
        block(*[output.name for output in model.graph.output])
    training, evaluation = block.to_model_proto()
    assert names(evaluation.graph.input) == ["x", "target1", "target2", "wa", "wb"]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    t1, t2 = (rng.normal(size=(3, 2)).astype(np.float32) for _ in range(2))
    weights = arrays(model.graph.initializer)
    feeds = {"x": x, "target1": t1, "target2": t2, **weights, "lazy_reset_grad": np.array([True])}
    feeds |= {f"{n}_grad.accumulation.buffer": np.zeros_like(w) for n, w in weights.items()}
    loss, da, db = opened(training).run(None, feeds)
    wa, wb = (torch.from_numpy(weights[n].copy()).requires_grad_() for n in ("wa", "wb"))
    y = torch.from_numpy(x)
    mse = torch.nn.functional.mse_loss
    expected = 0.4 * mse(y @ wa, torch.from_numpy(t1)) + 0.6 * mse(y @ wb, torch.from_numpy(t2))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    np.testing.assert_allclose(da, wa.grad, rtol=1e-5)
    np.testing.assert_allclose(db, wb.grad, rtol=1e-5)


def test_a_loss_that_is_not_reduced_is_differentiated_as_its_sum() -> None:
    class Masked(onnxblock.TrainingBlock):
        """Per-example losses, masked and averaged: what the peer crashed on."""

        def __init__(self) -> None:
            super().__init__()
            self.loss = onnxblock.loss.CrossEntropyLoss(reduction="none")
            self.mul, self.div = onnxblock.blocks.Mul(), onnxblock.blocks.Div()
            self.sum = onnxblock.blocks.ReduceSum(keepdims=False)

        def build(self, output_name: str) -> Any:
            each = self.loss(output_name)
            mask = onnxblock.blocks.InputLike(each)("mask")
            return self.div(self.sum(self.mul(each, mask)), self.sum(mask)), each

    block = Masked()
    block.requires_grad("fc2.bias")
    with onnxblock.base(mlp()):
        block("output")
    _, evaluation = block.to_model_proto()
    assert names(evaluation.graph.input)[:3] == ["input", "labels", "mask"]
    each = evaluation.graph.output[1].type.tensor_type.shape.dim
    assert [dim.dim_param for dim in each] == ["batch"]


def test_nested_training_block_is_an_ordinary_block() -> None:
    class Outer(onnxblock.TrainingBlock):
        def build(self, output_name: str) -> Any:
            return Training()(output_name)

    block = Outer()
    block.requires_grad("fc2.bias")
    with onnxblock.base(mlp()):
        block("output")
    training, _ = block.to_model_proto()
    assert len([n for n in names(training.graph.input) if "accumulation" in n]) == 1


def test_a_scalar_parameter_keeps_its_shape() -> None:
    nodes = [helper.make_node("Mul", ["x", "scale"], ["output"])]
    x, y = float_info("x", ["n", 3]), float_info("output", ["n", 3])
    model = model_of(nodes, [x], [y], {"scale": np.array(2.0, np.float32)})
    block = Training()
    block.requires_grad("scale")
    with onnxblock.base(model):
        block("output")
    training, _ = block.to_model_proto()
    feeds = {"x": np.ones((2, 3), np.float32), "labels": np.array([0, 1])}
    feeds |= {"scale": np.array(2.0, np.float32), "lazy_reset_grad": np.array([False])}
    feeds["scale_grad.accumulation.buffer"] = np.array(5.0, np.float32)
    gradient = opened(training).run(None, feeds)[2]
    assert gradient.shape == ()
    assert gradient == pytest.approx(5.0, abs=1e-6)  # three equal scores: theirs is 0


@pytest.mark.parametrize("known", [True, False])
def test_external_weights_are_read_from_the_models_folder(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its path, or from the current folder: an onnx.ModelProto has no other."""
    path = tmp_path / "model.onnx"
    monkeypatch.chdir(tmp_path.parent if known else tmp_path)
    onnx.save(mlp(), path, save_as_external_data=True, location="weights", size_threshold=0)
    block = Training()
    block.requires_grad("fc1.weight")
    with onnxblock.base(onnx.load(path, load_external_data=False), path if known else None):
        block("output")
    (weight,) = block.parameters()[0]
    assert (
        onnx.numpy_helper.to_array(weight) == arrays(mlp().graph.initializer)[weight.name]
    ).all()
    for model in block.to_model_proto():
        opened(model)


def test_models_over_2_gb_have_no_proto(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Training()
    with onnxblock.base(mlp()):
        block("output")
    monkeypatch.setattr("onward.training.onnxblock.model_accessor.PROTOBUF_LIMIT", 10)
    with pytest.raises(RuntimeError, match="This model is > 2GB: a ModelProto cannot hold"):
        block.to_model_proto()


def test_initializers_listed_as_inputs_become_parameters_once() -> None:
    model = mlp()
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    block = Training()
    block.requires_grad("fc2.bias")
    with onnxblock.base(model):
        block("output")
    _, evaluation = block.to_model_proto()
    assert names(evaluation.graph.input) == ["input", "labels", "fc2.bias"]


def test_custom_blocks_can_use_the_peers_private_names() -> None:
    from onward.training.onnxblock import _graph_utils, model_accessor

    class Halved(onnxblock.Block):
        def build(self, name: str) -> str:
            model = model_accessor._GLOBAL_ACCESSOR.model  # type: ignore[union-attr]
            assert _graph_utils.node_arg_exists(model, name)
            assert _graph_utils.get_output_from_output_name(model, name).name == name
            assert _graph_utils.get_input_from_input_name(model, "input").name == "input"
            half, output = (_graph_utils.generate_graph_name(token) for token in ("half", "y"))
            tensor = helper.make_tensor(half, TensorProto.FLOAT, [1], [0.5])
            model.graph.initializer.append(tensor)
            model.graph.node.append(helper.make_node("Mul", [name, half], [output]))
            return output

    with onnxblock.base(mlp()) as handle:
        Halved()("output")
    assert handle.model.graph.node[-1].op_type == "Mul"
    with pytest.raises(LookupError, match="output name x is not a graph output"):
        _graph_utils.get_output_from_output_name(mlp(), "x")
    with pytest.raises(LookupError, match="input name x is not a graph input"):
        _graph_utils.get_input_from_input_name(mlp(), "x")


@pytest.mark.parametrize(
    ("ask", "law"),
    [
        (lambda: Forward().to_model_proto(), "Please build the forward models first"),
        (lambda: Training().to_model_proto(), "Please build the training and eval models first"),
        (lambda: Training().parameters(), "Please build the training model first before trying"),
    ],
)
def test_unbuilt_block_has_no_model(ask: Any, law: str) -> None:
    with pytest.raises(RuntimeError, match=law):
        ask()


def test_missing_output_is_a_lookup_error() -> None:
    class Wrong(onnxblock.ForwardBlock):
        def build(self, output_name: str) -> str:
            return "nothing"

    with onnxblock.base(mlp()):
        law = "The provided name nothing is not a graph value info or a graph output"
        with pytest.raises(LookupError, match=law):
            Wrong()("output")


def test_every_peer_name_exists() -> None:
    classes = ["Block", "ForwardBlock", "TrainingBlock"]
    contexts = ["base", "empty_base", "custom_op_library"]
    files = ["save_checkpoint", "load_checkpoint_to_model"]
    for name in (*classes, *contexts, *files, "blocks", "loss", "optim"):
        assert name in dir(onnxblock)
        assert getattr(onnxblock, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Model'"):
        _ = onnxblock.Model


def test_eval_model_is_in_evaluation_mode() -> None:
    block = Training()
    for name in ("conv.weight", "fc.weight"):
        block.requires_grad(name)
    with onnxblock.base(convolutional(dropout=True)):
        block("output")
    training, evaluation = block.to_model_proto()
    (norm,) = (node for node in evaluation.graph.node if node.op_type == "BatchNormalization")
    assert {a.name: a.i for a in norm.attribute}["training_mode"] == 0
    assert names(block.parameters()[1]) == ["bn.running_mean", "bn.running_var"]
    assert names(training.graph.output)[-2:] == [
        "bn.running_mean_updated",
        "bn.running_var_updated",
    ]
