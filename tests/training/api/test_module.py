"""Module: steps of training and evaluation over bound parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onward.errors import (
    CheckpointMismatch,
    CheckpointNominal,
    FeedError,
    FileMissing,
    InvalidModel,
    OptionError,
    ProviderMissing,
)
from onward.graph.builder import OpBuilder
from onward.losses import CrossEntropy, Total
from onward.providers.ort.bound_session import copy_to_ort
from onward.training import onnxblock
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.artifacts import LossType
from tests.training.api.made import NAMES, Folder, batch, classifier, make, normalized


def torch_loss(state: CheckpointState, x: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The loss and the gradients as torch computes them, by name."""
    values = {n: torch.tensor(p.data, requires_grad=True) for n, p in state.parameters}
    hidden = torch.relu(torch.from_numpy(x) @ values["fc1.weight"].T + values["fc1.bias"])
    logits = hidden @ values["fc2.weight"].T + values["fc2.bias"]
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    loss.backward()
    return {"loss": loss.detach().numpy(), **{n: v.grad.numpy() for n, v in values.items()}}


def test_loss_and_gradients_match_torch(whole: Folder) -> None:
    state, module, _ = whole.open()
    x, labels = batch()
    expected = torch_loss(state, x, labels)
    loss = module(x, labels)
    assert isinstance(loss, np.ndarray) and loss.shape == ()
    np.testing.assert_allclose(loss, expected["loss"], rtol=1e-6)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(parameter.grad, expected[name], rtol=1e-5, atol=1e-7)


def test_gradients_accumulate_until_reset(whole: Folder) -> None:
    state, module, _ = whole.open()
    first, second = batch(seed=1), batch(size=5, seed=2)
    one, two = torch_loss(state, *first), torch_loss(state, *second)
    module(*first)
    module(*second)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(parameter.grad, one[name] + two[name], rtol=1e-5, atol=1e-6)
    module.lazy_reset_grad()
    module(*second)
    for name, parameter in state.parameters:
        np.testing.assert_allclose(parameter.grad, two[name], rtol=1e-5, atol=1e-6)


def test_reset_ignores_old_gradients(whole: Folder) -> None:
    state, module, _ = whole.open()
    assert state._state.gradients is not None
    state._state.gradients["fc1.weight"][...] = np.nan
    module(*batch())
    assert np.isfinite(state.parameters["fc1.weight"].grad).all()


def test_results_have_the_type_of_the_inputs(partly: Folder) -> None:
    _, module, _ = partly.open()
    x, labels = batch()
    loss, output = module(x, labels)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in (x, labels)]
    again, same = module.train()(*values)
    assert isinstance(again, onnxruntime.OrtValue)
    np.testing.assert_array_equal(again.numpy(), loss)
    np.testing.assert_array_equal(same.numpy(), output)
    bare = [value._ortvalue for value in values]  # what OrtValueVector holds
    assert module(*bare)[0].numpy() == loss


def test_results_are_not_overwritten_by_the_next_call(whole: Folder) -> None:
    _, module, optimizer = whole.open()
    losses = []
    for _ in range(5):
        losses.append(module(*batch()))
        optimizer.step()
        module.lazy_reset_grad()
    assert len({float(loss) for loss in losses}) == 5
    assert losses[-1] < losses[0]


def test_evaluation_changes_nothing(whole: Folder) -> None:
    state, module, _ = whole.open()
    x, labels = batch()
    trained = module(x, labels)
    before = {name: (p.data, p.grad) for name, p in state.parameters}
    np.testing.assert_allclose(module.eval()(x, labels), trained, rtol=1e-6)
    assert module.training is False
    for name, p in state.parameters:
        np.testing.assert_array_equal(before[name][0], p.data)
        np.testing.assert_array_equal(before[name][1], p.grad)


def test_evaluation_sees_what_training_changed(whole: Folder) -> None:
    _, module, optimizer = whole.open()
    x, labels = batch()
    before = module.eval()(x, labels)
    optimizer.set_learning_rate(0.1)
    module.train()(x, labels)
    optimizer.step()
    assert module.eval()(x, labels) < before


def test_input_and_output_names_depend_on_the_mode(partly: Folder) -> None:
    _, module, _ = partly.open()
    assert module.input_names() == ["input", "labels"]
    assert module.output_names()[1:] == ["output"] and len(module.output_names()) == 2
    assert module.eval().input_names() == ["input", "labels"]
    assert module.output_names()[1:] == ["output"]


# -- buffers ---------------------------------------------------------------------------------------


def test_contiguous_parameters_are_the_trainable_ones_first(partly: Folder) -> None:
    state, module, _ = partly.open()
    buffer = module.get_contiguous_parameters()
    assert isinstance(buffer, onnxruntime.OrtValue)
    order = ["fc2.weight", "fc2.bias", "fc1.weight", "fc1.bias"]
    flat = np.concatenate([state.parameters[name].data.reshape(-1) for name in order])
    np.testing.assert_array_equal(buffer.numpy(), flat)
    assert module.get_parameters_size() == 27 and module.get_parameters_size(False) == 67
    trainable = module.get_contiguous_parameters(trainable_only=True)
    np.testing.assert_array_equal(trainable.numpy(), flat[:27])


@pytest.mark.parametrize("trainable_only", [True, False])
def test_parameters_are_restored_from_a_buffer(partly: Folder, trainable_only: bool) -> None:
    _, module, optimizer = partly.open()
    old = module.get_contiguous_parameters(trainable_only)
    kept = old.numpy().copy()
    module(*batch())
    optimizer.step()
    assert not np.array_equal(module.get_contiguous_parameters(trainable_only).numpy(), kept)
    np.testing.assert_array_equal(old.numpy(), kept)  # a copy, not a view
    module.copy_buffer_to_parameters(old, trainable_only)
    np.testing.assert_array_equal(module.get_contiguous_parameters(trainable_only).numpy(), kept)


def test_an_array_from_a_buffer_outlives_it(whole: Folder) -> None:
    _, module, _ = whole.open()
    arrays = [module.get_contiguous_parameters().numpy() for _ in range(20)]
    for array in arrays:
        np.testing.assert_array_equal(array, arrays[0])
    module.copy_buffer_to_parameters(arrays[0] * 2)
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), arrays[1] * 2)


def test_a_buffer_may_be_numpy_and_must_fit(partly: Folder) -> None:
    state, module, _ = partly.open()
    module.copy_buffer_to_parameters(np.arange(27, dtype=np.float32))
    assert state.parameters["fc2.bias"].data.tolist() == [24, 25, 26]
    law = "the trainable parameters are 27 of float32, the buffer has 67 of float32\n"
    with pytest.raises(FeedError, match=law):
        module.copy_buffer_to_parameters(module.get_contiguous_parameters())
    with pytest.raises(FeedError, match="27 of float32, the buffer has 27 of float64"):
        module.copy_buffer_to_parameters(np.zeros(27))


# -- nominal checkpoints ---------------------------------------------------------------------------


def test_nominal_checkpoint_is_refused_until_loaded(partly: Folder) -> None:
    state, module, optimizer = partly.open(partly.nominal)
    full = partly.open()[1].get_contiguous_parameters()
    assert "fc1.weight" in state.parameters and len(state.parameters) == 4
    assert module.get_parameters_size(trainable_only=False) == 67
    with pytest.raises(CheckpointNominal, match="Please load the parameter states first"):
        _ = state.parameters["fc1.weight"]
    with pytest.raises(CheckpointNominal, match="Please load all the parameter states first"):
        state.parameters["fc1.weight"] = np.ones((8, 4), np.float32)
    for use in (
        module.get_contiguous_parameters,
        lambda: module(*batch()),
        optimizer.step,
        lambda: module.export_model_for_inferencing("x.onnx", ["output"]),
    ):
        with pytest.raises(RuntimeError, match=r"Please load the model parameters first."):
            use()
    module.copy_buffer_to_parameters(full.numpy()[:27])
    with pytest.raises(CheckpointNominal):  # the frozen ones are still missing
        module(*batch())
    module.copy_buffer_to_parameters(full, trainable_only=False)
    assert module(*batch())[0] == partly.open()[1](*batch())[0]


def test_nominal_checkpoint_keeps_data_that_is_not_float32(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("input", "float32", ("batch", 2, 2))
    flat = op.Reshape(x, op.initializer("shape", np.array([0, -1])))
    model = op.model(output=op.MatMul(flat, op.initializer("w", np.ones((4, 3), np.float32))))
    folder = make(tmp_path / "a", model, requires_grad=["w"], frozen_params=["shape"])
    state, module, _ = folder.open(folder.nominal)
    CheckpointState.save_checkpoint(state, tmp_path / "again")
    module = folder.open(tmp_path / "again")[1]
    assert module.get_parameters_size(trainable_only=False) == 12
    module.copy_buffer_to_parameters(np.ones(12, np.float32), trainable_only=False)
    feeds = np.ones((3, 2, 2), np.float32), np.array([0, 1, 2])
    assert module(*feeds) == folder.open()[1](*feeds)
    CheckpointState.save_checkpoint(module._state, tmp_path / "whole")
    assert CheckpointState.load_checkpoint(tmp_path / "whole")["shape"].data.tolist() == [0, -1]


# -- what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        (lambda x, y: (x,), "the model takes 2 inputs, not 1\ncall it with input, labels"),
        (lambda x, y: (x, y, y), "the model takes 2 inputs, not 3"),
        (
            lambda x, y: (x.astype(np.float64), y),
            r"'input' takes tensor\(float\), but was given .*double",
        ),
        (
            lambda x, y: (x, y.astype(np.int32)),
            r"'labels' takes tensor\(int64\), but was .*int32",
        ),
        (
            lambda x, y: (x[:, :3], y),
            r"shape \(batch, 4\), but was given \(16, 3\): dimension 1 ",
        ),
        (lambda x, y: (x, y[:5]), "'batch' is 16 in input 'input' but 5 in 'labels'"),
        (lambda x, y: (x, y + 3), r"'labels' holds . at \[0\]: classes go from 0 to 2\nno param"),
        (
            lambda x, y: (x, copy_to_ort(y - 3)),
            r"'labels' holds -. at \[0\]: classes go from 0 to 2",
        ),
    ],
)
def test_wrong_inputs_are_refused_and_change_nothing(whole: Folder, feeds, words: str) -> None:
    state, module, optimizer = whole.open()
    x, labels = batch()
    module(x, labels)
    before = {name: (p.data, p.grad) for name, p in state.parameters}
    with pytest.raises(FeedError, match=words):
        module(*feeds(x, labels))
    for name, p in state.parameters:
        np.testing.assert_array_equal(before[name][0], p.data)
        np.testing.assert_array_equal(before[name][1], p.grad)
    optimizer.step()
    module.lazy_reset_grad()
    with pytest.raises(FeedError):
        module(*feeds(x, labels))
    assert np.isfinite(module(x, labels))


@pytest.mark.parametrize("mode", [True, False])
def test_labels_are_checked_in_both_modes(whole: Folder, mode: bool) -> None:
    _, module, _ = whole.open()
    x, labels = batch()
    labels[5] = -1  # would be the last class without the check
    with pytest.raises(FeedError, match=r"'labels' holds -1 at \[5\]: classes go from 0 to 2"):
        module.train(mode)(x, labels)


@pytest.mark.parametrize(
    "loss",
    [
        onnxblock.loss.CrossEntropyLoss(ignore_index=-100),
        CrossEntropy(label_smoothing=0.1, ignore_index=-100),
        Total({"all": CrossEntropy(label_smoothing=0.1, ignore_index=-100)}),
    ],
    ids=["block", "loss", "total"],
)
def test_labels_are_checked_for_every_form_of_the_loss(tmp_path: Path, loss: Any) -> None:
    _, module, _ = make(tmp_path, loss=loss).open()
    x, labels = batch()
    labels[5] = -100
    assert np.isfinite(np.asarray(module(x, labels))).all()
    labels[6] = -1
    law = r"'labels' holds -1 at \[6\]: classes go from 0 to 2 \(or -100, which is ignored\)"
    with pytest.raises(FeedError, match=law):
        module(x, labels)


def test_artifacts_without_label_metadata_run(whole: Folder, tmp_path: Path) -> None:
    model = onnx.load(whole.training)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "training_model.onnx")
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    module = Module(tmp_path / "training_model.onnx", state)
    x, labels = batch()
    assert np.isfinite(module(x, labels))
    with pytest.raises(FeedError, match=r"an input holds (an|the) index.* that is out of range: "):
        module(x, labels + 3)


def test_noncontiguous_inputs_are_read_correctly(whole: Folder) -> None:
    _, module, _ = whole.open()
    x, labels = batch()
    strided = np.repeat(x, 2, axis=0)[::2]
    assert module(strided, labels) == module(x, labels)


def test_a_checkpoint_of_another_model_is_refused(whole: Folder, partly: Folder) -> None:
    frozen = CheckpointState.load_checkpoint(partly.checkpoint)
    with pytest.raises(CheckpointMismatch, match=r"'fc1.weight' is trainable in the model, in the"):
        Module(whole.training, frozen)


def test_mismatched_shapes_and_names_are_in_the_error(whole: Folder, tmp_path: Path) -> None:
    model = classifier()
    model.graph.initializers["fc2.weight"].name = "head.weight"
    renamed = make(tmp_path / "renamed", model)
    state = CheckpointState.load_checkpoint(renamed.checkpoint)
    with pytest.raises(CheckpointMismatch, match=r"'fc2.weight': the model has it, the checkpoint"):
        Module(whole.training, state)
    norm = make(tmp_path / "norm", normalized(), loss=LossType.MSELoss)
    with pytest.raises(CheckpointMismatch, match="another model: parameter 'scale'"):
        Module(norm.training, CheckpointState.load_checkpoint(whole.checkpoint))


def test_invalid_state_model_or_device_is_refused(whole: Folder) -> None:
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    with pytest.raises(TypeError, match="state must be a CheckpointState, not str"):
        Module(whole.training, "checkpoint")  # type: ignore[arg-type]
    with pytest.raises(InvalidModel, match="is not a training model: it has no gradients"):
        Module(whole.evaluation, state)
    with pytest.raises(FileMissing, match=r"no model at .*nowhere\.onnx\n"):
        Module(whole.path / "nowhere.onnx", state)
    with pytest.raises(FileMissing, match=r"no optimizer model at .*nowhere"):
        Optimizer(whole.path / "nowhere.onnx", Module(whole.training, state))
    with pytest.raises(FileMissing, match="no evaluation model at"):
        Module(whole.training, state, whole.path / "nowhere.onnx")
    with pytest.raises(OptionError, match=r"no device 'tpu'"):
        Module(whole.training, state, device="tpu")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(ProviderMissing, match="device 'cuda': this onnxruntime has no CUDA"):
            Module(whole.training, state, device="cuda")


def test_evaluation_without_an_evaluation_model_is_refused(whole: Folder) -> None:
    module = Module(whole.training, CheckpointState.load_checkpoint(whole.checkpoint)).eval()
    with pytest.raises(OptionError, match="no evaluation model was given"):
        module(*batch())
    with pytest.raises(OptionError, match="no evaluation model was given: an inference model"):
        module.export_model_for_inferencing("x.onnx", ["output"])


def test_session_options_of_onnxruntime_are_accepted(whole: Folder) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    module = Module(whole.training, state, session_options=options)
    Optimizer(whole.optimizer, module)
    assert np.isfinite(module(*batch()))


# -- state that the forward changes ----------------------------------------------------------------


def test_running_statistics_change_only_in_training(tmp_path: Path) -> None:
    folder = make(tmp_path, normalized(), loss=LossType.MSELoss)
    state, module, _ = folder.open()
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, size=(6, 2, 3)).astype(np.float32)
    target = np.zeros_like(x)
    layer = torch.nn.BatchNorm1d(2, momentum=0.1)
    for _ in range(2):
        module(x, target)
        layer(torch.from_numpy(x))
    np.testing.assert_allclose(state.parameters["mean"].data, layer.running_mean, rtol=1e-5)
    np.testing.assert_allclose(state.parameters["var"].data, layer.running_var, rtol=1e-5)
    assert not state.parameters["mean"].requires_grad and state.parameters["mean"].grad is None
    before = state.parameters["mean"].data
    module.eval()(x, target)
    np.testing.assert_array_equal(state.parameters["mean"].data, before)
    with pytest.raises(FeedError):
        module.train()(x, target[:2])
    np.testing.assert_array_equal(state.parameters["mean"].data, before)


def test_gradients_of_inputs_are_in_input_gradients(tmp_path: Path) -> None:
    folder = make(tmp_path, requires_grad=[*NAMES, "input"])
    state, module, optimizer = folder.open()
    x, labels = batch()
    module(x, labels)
    assert module.input_gradients["input"].shape == x.shape
    assert np.abs(module.input_gradients["input"]).sum() > 0
    assert len(state.parameters) == 4
    optimizer.step()


def test_string_inputs_are_accepted_as_by_the_peer(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    words = op.input("words", "string", ("batch", 4))
    w = op.initializer("w", np.ones((4, 2), np.float32))
    model = op.model(output=op.MatMul(op.Cast(words, to=1), w))
    _, module, optimizer = make(tmp_path, model).open()
    texts, labels = np.array([["1.0", "2.0", "3.0", "4.0"]]), np.array([1])
    first = module(texts, labels)
    optimizer.set_learning_rate(0.1)
    optimizer.step()
    assert module.eval()(texts, labels) < first


def test_feeds_may_be_lists_and_tensors_of_torch(whole: Folder) -> None:
    _, module, _ = whole.open()
    x, labels = batch()
    expected = module(x, labels)
    tensor = torch.from_numpy(x).requires_grad_()
    for given in (tensor, x.astype(">f4"), list(x)):
        assert module(given, labels.tolist()) == expected
        assert module.eval()(given, labels.tolist()) == pytest.approx(expected)
        module.train()
    for wrong, law in (
        (None, "input 'input' is not an array of numbers: it is NoneType\ngive a numpy array"),
        ({"x": x}, "input 'input' is not an array of numbers: it is dict\ngive a numpy array"),
        ([[1.0], [1.0, 2.0]], "input 'input' is not an array: setting an array element with a seq"),
    ):
        with pytest.raises(FeedError, match=law):
            module(wrong, labels)


def test_failed_run_does_not_change_gradients(whole: Folder, tmp_path: Path) -> None:
    model = onnx.load(whole.training)
    del model.metadata_props[:]  # the label ranges are unknown
    onnx.save(model, tmp_path / "training_model.onnx")
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    module = Module(tmp_path / "training_model.onnx", state)
    x, labels = batch()
    module(x, labels)
    before = {name: parameter.grad for name, parameter in state.parameters}
    with pytest.raises(FeedError, match="out of range") as caught:
        module(x, labels + 3)
    assert "accumulated gradients are as before this step" in caught.value.__notes__[0]
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.grad, before[name])
    module.lazy_reset_grad()
    with pytest.raises(FeedError, match="out of range"):
        module(x, labels + 3)
    assert not any(parameter.grad.any() for _, parameter in state.parameters)


def test_model_with_only_input_gradients_runs(tmp_path: Path) -> None:
    folder = make(tmp_path, requires_grad=["input"], optimizer=None)
    state = CheckpointState.load_checkpoint(folder.checkpoint)
    module = Module(folder.training, state)
    x, labels = batch()
    module(x, labels)
    first = module.input_gradients["input"]
    module(x, labels)  # each step has its own
    np.testing.assert_array_equal(module.input_gradients["input"], first)
    assert first.shape == x.shape and first.any()
