"""Optimizer: updates in place, over flat buffers and over lists, and their state."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onward.errors import CheckpointMismatch, InvalidModel, OptionError
from onward.graph.builder import OpBuilder
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import AdamW
from onward.optimizers.groups import Group
from onward.optimizers.lamb import LAMB
from onward.optimizers.sgd import SGD
from onward.training import onnxblock
from onward.training.api import CheckpointState, Module, Optimizer
from onward.training.api import module as modules
from onward.training.api import optimizer as optimizers
from onward.training.api.optimizer_updates import ListUpdate, SessionUpdate
from onward.training.artifacts import LossType, OptimType
from tests.training.api.made import Folder, batch, make, normalized


def train(folder: Folder, steps: int = 4, lr: float = 0.01) -> tuple[CheckpointState, Optimizer]:
    state, module, optimizer = folder.open()
    optimizer.set_learning_rate(lr)
    for seed in range(steps):
        module(*batch(seed=seed))
        optimizer.step()
        module.lazy_reset_grad()
    return state, optimizer


def without_updates(folder: Folder, target: Path) -> Folder:
    """The same artifacts, with only the optimizer over lists."""
    target.mkdir()
    for path in folder.path.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    model = onnx.load(folder.optimizer)
    kept = [prop for prop in model.metadata_props if prop.key != "onward.updates"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, target / "optimizer_model.onnx")
    return Folder(target)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimType.AdamW,
        OptimType.SGD,
        AdamW(weight_decay=0.1),
        SGD(momentum=0.9, nesterov=True),
        Adagrad(initial_accumulator_value=0.5),
        onnxblock.optim.AdamW(weight_decay=0.1, clip_grad=onnxblock.optim.ClipGradNorm(0.1)),
    ],
    ids=["AdamW", "SGD", "torch's AdamW", "momentum", "Adagrad", "clipped"],
)
def test_session_and_list_updates_are_equal(optimizer: object, tmp_path: Path) -> None:
    folder = make(tmp_path / "flat", optimizer=optimizer)
    flat, one = train(folder)
    listed, other = train(without_updates(folder, tmp_path / "listed"))
    assert isinstance(one._update, SessionUpdate) and isinstance(other._update, ListUpdate)
    for name, parameter in flat.parameters:
        np.testing.assert_allclose(
            parameter.data, listed.parameters[name].data, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("clip", [None, onnxblock.optim.ClipGradNorm(0.1)], ids=["free", "clipped"])
def test_update_in_pieces_equals_one_update(
    clip: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path, optimizer=onnxblock.optim.AdamW(clip_grad=clip))
    at_once, _ = train(folder)
    for each in (modules, optimizers):
        monkeypatch.setattr(each, "MAX_NUMBERS_PER_RUN", 10)  # 67 numbers in 8 pieces
    by_piece, made = train(folder)
    assert not made._state.store.updates[0].matrices
    for name, parameter in at_once.parameters:
        np.testing.assert_allclose(parameter.data, by_piece.parameters[name].data, rtol=1e-6)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("optimizer", [LAMB(), Adafactor()], ids=["LAMB", "Adafactor"])
def test_optimizers_over_whole_parameters_work(
    optimizer: object, packed: bool, tmp_path: Path
) -> None:
    folder = make(tmp_path / "packed", optimizer=optimizer)
    if not packed:
        folder = without_updates(folder, tmp_path / "listed")
    state, module, made = folder.open()
    assert isinstance(made._update, SessionUpdate if packed else ListUpdate)
    losses = []
    for _ in range(20):
        losses.append(float(module(*batch())))
        made.step()
        module.lazy_reset_grad()
    assert losses[-1] < losses[0]
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    again = folder.open(tmp_path / "later")[0]
    saved, read = state._state.optimizer, again._state.optimizer
    assert saved is not None and read is not None and read.step == 20
    for slot, arrays in saved.slots.items():
        for name, array in arrays.items():
            np.testing.assert_array_equal(read.slots[slot][name], array)


def test_frozen_parameters_do_not_change(partly: Folder) -> None:
    before = CheckpointState.load_checkpoint(partly.checkpoint)
    after, _ = train(partly)
    for name, parameter in after.parameters:
        same = np.array_equal(parameter.data, before.parameters[name].data)
        assert same == (not parameter.requires_grad)


def test_a_resumed_training_is_bit_identical(whole: Folder, tmp_path: Path) -> None:
    state, module, optimizer = whole.open()
    optimizer.set_learning_rate(0.03)
    for seed in range(6):
        if seed == 3:
            CheckpointState.save_checkpoint(state, tmp_path / "third", True)
        module(*batch(seed=seed))
        optimizer.step()
        module.lazy_reset_grad()
    again, module, optimizer = whole.open(tmp_path / "third")
    assert optimizer.get_learning_rate() == 0.03
    for seed in range(3, 6):
        module(*batch(seed=seed))
        optimizer.step()
        module.lazy_reset_grad()
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, again.parameters[name].data)


def test_optimizer_restarts_without_saved_state(whole: Folder, tmp_path: Path) -> None:
    state, _ = train(whole)
    CheckpointState.save_checkpoint(state, tmp_path / "plain")
    optimizer = whole.open(tmp_path / "plain")[2]
    assert optimizer.get_learning_rate() == 0.001 and optimizer._stored.step == 0


def test_optimizer_state_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path / "adam")
    momentum = make(tmp_path / "momentum", optimizer=SGD(momentum=0.9))
    state, _ = train(folder)
    CheckpointState.save_checkpoint(state, tmp_path / "saved", True)
    with pytest.raises(CheckpointMismatch, match=r"the optimizer needs 'momentum_buffer' of 'fc1"):
        momentum.open(tmp_path / "saved")


def test_the_learning_rate_is_read_and_set(whole: Folder) -> None:
    optimizer = whole.open()[2]
    assert optimizer.get_learning_rate() == 0.001
    optimizer.set_learning_rate(0.5)
    assert optimizer.get_learning_rate() == 0.5
    for wrong in (-0.1, float("nan"), float("inf"), None, "fast"):
        with pytest.raises(
            OptionError, match=r"a learning rate must be a number, 0 or more, not .*\ngive"
        ):
            optimizer.set_learning_rate(wrong)  # type: ignore[arg-type]
    assert optimizer.get_learning_rate() == 0.5


@pytest.mark.parametrize(("own", "expected"), [(0.1, 0.005), (0.0, 0.01)])
def test_groups_keep_their_ratio_to_the_rate_that_is_set(
    own: float, expected: float, tmp_path: Path
) -> None:
    groups = [Group(parameters="fc1.*", lr=0.01), Group(parameters="fc2.bias", lr=0.0)]
    state, module, optimizer = make(tmp_path, optimizer=SGD(lr=own), groups=groups).open()
    assert optimizer.get_learning_rate() == own
    optimizer.set_learning_rate(0.05)
    module(*batch())
    before = {name: parameter.data for name, parameter in state.parameters}
    optimizer.step()
    rates = {"fc1.weight": expected, "fc1.bias": expected, "fc2.weight": 0.05, "fc2.bias": 0.0}
    if not own:
        rates["fc2.bias"] = 0.05  # as the optimizer's own was
    for name, rate in rates.items():
        moved = before[name] - state.parameters[name].data
        np.testing.assert_allclose(moved, rate * state.parameters[name].grad, atol=1e-7)


def test_initial_learning_rate_is_the_artifacts(tmp_path: Path) -> None:
    assert make(tmp_path, optimizer=AdamW(lr=0.02)).open()[2].get_learning_rate() == 0.02


def test_two_optimizers_of_one_module_share_their_state(whole: Folder) -> None:
    _, module, first = whole.open()
    second = Optimizer(whole.optimizer, module)
    module(*batch())
    first.step()
    second.step()
    assert first._stored is second._stored and first._stored.step == 2


def test_optimizer_model_without_metadata_uses_its_inputs(whole: Folder, tmp_path: Path) -> None:
    model = onnx.load(whole.optimizer)
    del model.metadata_props[:]
    bare = tmp_path / "bare.onnx"
    onnx.save(model, bare)
    _, module, _ = whole.open()
    module(*batch())
    optimizer = Optimizer(bare, module)
    optimizer.step()
    assert optimizer._stored.slots.keys() == {"first_order_moments", "second_order_moments"}


def test_invalid_optimizer_model_is_refused(whole: Folder, tmp_path: Path) -> None:
    _, module, _ = whole.open()
    with pytest.raises(TypeError, match="module must be a Module, not str"):
        Optimizer(whole.optimizer, "module")  # type: ignore[arg-type]
    with pytest.raises(InvalidModel, match="not an optimizer model: its inputs lack params"):
        Optimizer(whole.evaluation, module)
    for key, value, words in (
        ("onward.slots", "{]", "its metadata cannot be read"),
        (
            "onward.updates",
            "no json!",
            "the model's onward.updates cannot be read: .*\nmake the",
        ),
        ("onward.updates", '{"version": 1}', "the model's onward.updates cannot be read: Key"),
        ("onward.slot_layout", json.dumps([1]), "its metadata cannot be read"),
    ):
        model = onnx.load(whole.optimizer)
        for prop in model.metadata_props:
            if prop.key == key:
                prop.value = value
        onnx.save(model, tmp_path / "damaged.onnx")
        with pytest.raises(InvalidModel, match=words):
            Optimizer(tmp_path / "damaged.onnx", module)


def test_half_precision_parameters_have_slots_of_float32(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("input", "float16", ("batch", 4))
    w = op.initializer("w", np.ones((4, 3), np.float16))
    model = op.model(output=op.Cast(op.MatMul(x, w), to=1))
    folder = make(tmp_path, model, requires_grad=["w"])
    state, module, optimizer = folder.open()
    data, labels = batch()
    optimizer.set_learning_rate(0.1)
    first = module(data.astype(np.float16), labels)
    optimizer.step()
    assert module.eval()(data.astype(np.float16), labels) < first
    assert isinstance(optimizer._update, ListUpdate)
    assert state.parameters["w"].data.dtype == np.float16
    assert optimizer._stored.slots["first_order_moments"]["w"].dtype == np.float32
    with pytest.raises(OptionError, match="no float32 parameters, and a buffer holds no others"):
        module.get_contiguous_parameters()


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_fifty_steps_match_torch(name: str, tmp_path: Path) -> None:
    settings = {"momentum": 0.9} if name == "SGD" else {"weight_decay": 0.1}
    ours = {"SGD": SGD, "AdamW": AdamW}[name](lr=0.01, **settings)
    state, module, optimizer = make(tmp_path, optimizer=ours).open()
    values = {n: torch.tensor(p.data, requires_grad=True) for n, p in state.parameters}
    theirs = getattr(torch.optim, name)(list(values.values()), lr=0.01, **settings)
    for seed in range(50):
        x, labels = batch(seed=seed)
        module(x, labels)
        optimizer.step()
        module.lazy_reset_grad()
        hidden = torch.relu(torch.from_numpy(x) @ values["fc1.weight"].T + values["fc1.bias"])
        logits = hidden @ values["fc2.weight"].T + values["fc2.bias"]
        theirs.zero_grad()
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).backward()
        theirs.step()
    for each, parameter in state.parameters:
        np.testing.assert_allclose(parameter.data, values[each].detach(), rtol=0, atol=1e-5)


# -- what is not finite ----------------------------------------------------------------------------

BAD = {"NaN": np.nan, "infinity": np.inf, "overflow": 3e38}
OWN: dict[str, Any] = {
    "AdamW": {},  # over flat buffers
    "LAMB": {"optimizer": LAMB(lr=0.1)},  # over lists
    "a block": {"optimizer": onnxblock.optim.SGD(clip_grad=onnxblock.optim.ClipGradNorm(1.0))},
}


def spoiled(kind: str, seed: int = 0) -> tuple[Any, Any]:
    x, labels = batch(seed=seed)
    x[3] = BAD[kind] * np.array([1, -1, 1, -1])
    return x, labels


def standing(state: CheckpointState, optimizer: Optimizer) -> dict[str, Any]:
    """All that an update changes."""
    slots = optimizer._stored.slots.items()
    found = {f"{slot}/{name}": a.copy() for slot, each in slots for name, a in each.items()}
    found |= {name: parameter.data for name, parameter in state.parameters}
    return found | {"step": np.array(optimizer._stored.step)}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("own", OWN)
def test_nonfinite_gradients_skip_the_step(
    own: str, kind: str, tmp_path: Path, caplog: Any
) -> None:
    folder = make(tmp_path, **OWN[own])
    (state, module, optimizer), (other, without, plain) = folder.open(), folder.open()
    for seed in range(3):
        for parts in (2, 1):  # accumulated, the bad one first and last; then without others
            before = standing(state, optimizer)
            for part in range(parts):
                module(*(spoiled(kind) if part == seed % parts else batch(seed=part)))
            with caplog.at_level(logging.WARNING, "onward"):
                optimizer.step()
            for name, array in standing(state, optimizer).items():
                np.testing.assert_array_equal(array, before[name], err_msg=name)
        for each in (module, without):  # no lazy_reset_grad: the gradients were dropped
            each(*batch(seed=seed))
        for update in (optimizer, plain):
            update.step()
        for each in (module, without):
            each.lazy_reset_grad()
    assert optimizer.skipped_steps == 6 and plain.skipped_steps == 0
    assert caplog.messages.count("step 0: gradients are not finite, no update") == 2
    expected = standing(other, plain)
    for name, array in standing(state, optimizer).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_nonfinite_loss_skips_the_step(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("input", "float32", ("batch", 1))
    y = op.Mul(x, op.initializer("w", np.ones(1, np.float32)))
    model = op.model(loss=op.Add(op.ReduceSum(y, keepdims=0), op.input("more", "float32", ())))
    folder = make(tmp_path, model, requires_grad=["w"], loss=None, optimizer=SGD(lr=0.1))
    state, module, optimizer = folder.open()
    ones = np.ones((2, 1), np.float32)
    assert np.isinf(module(ones, np.float32(np.inf)))  # its gradients are finite
    optimizer.step()
    assert optimizer.skipped_steps == 1 and state.parameters["w"].data == 1.0
    module(ones, np.float32(0.0))
    optimizer.step()
    np.testing.assert_allclose(state.parameters["w"].data, 0.8)


def test_nonfinite_batch_keeps_running_statistics(tmp_path: Path) -> None:
    folder = make(tmp_path, normalized(), loss=LossType.MSELoss)
    state, module, _ = folder.open()
    x = np.ones((4, 2, 3), np.float32)
    bad = x.copy()
    bad[0] = np.nan
    module(bad, x)
    assert state.parameters["mean"].data.tolist() == [0, 0]
    module(x, x)  # in one sum with the bad one: the update is lost, its statistics are not
    np.testing.assert_allclose(state.parameters["mean"].data, [0.1, 0.1], rtol=1e-6)
    assert np.isfinite(state.parameters["var"].data).all()


def test_large_gradients_whose_sum_overflows_are_not_skipped(tmp_path: Path) -> None:
    folder = make(tmp_path, normalized(), loss=LossType.MSELoss, optimizer=SGD(lr=0.0))
    _, module, optimizer = folder.open()
    x = np.ones((4, 2, 3), np.float32)
    module(x, x)
    gradients = module._state._state.gradients
    assert gradients is not None
    gradients["scale"][...] = 3e38
    optimizer.step()
    assert optimizer.skipped_steps == 0 and optimizer._stored.step == 1


def test_finite_gradients_whose_sum_is_not_are_skipped(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("input", "float32", ("batch", 1))
    y = op.Mul(x, op.initializer("w", np.zeros(1, np.float32)))
    model = op.model(loss=op.ReduceSum(y, keepdims=0))
    folder = make(tmp_path, model, requires_grad=["w"], loss=None, optimizer=SGD(lr=1e-37))
    state, module, optimizer = folder.open()
    large = np.full((1, 1), 3e38, np.float32)
    module(large)
    module(large)
    optimizer.step()
    assert optimizer.skipped_steps == 1 and state["w"].data.tolist() == [0.0]
    module(large)
    optimizer.step()
    np.testing.assert_allclose(state["w"].data, [-30.0], rtol=1e-5)


def test_optimizer_created_after_a_step_uses_its_gradients(whole: Folder) -> None:
    _, module, optimizer = whole.open()
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    late = Module(whole.training, state)
    for each in (module, late):
        each(*batch())
        each(*batch(seed=1))
    gradients = {name: parameter.grad for name, parameter in state.parameters}
    Optimizer(whole.optimizer, late).step()
    optimizer.step()
    for name, parameter in module._state.parameters:
        np.testing.assert_array_equal(parameter.data, state[name].data)
        np.testing.assert_array_equal(parameter.grad, gradients[name])


def test_two_kinds_of_optimizers_alternate(whole: Folder, tmp_path: Path) -> None:
    sgd = make(tmp_path, optimizer=SGD(lr=0.1))
    state, module, _ = sgd.open()
    first, second = Optimizer(sgd.optimizer, module), Optimizer(whole.optimizer, module)
    losses = []
    for optimizer in (first, second, first, second):
        losses.append(float(module(*batch())))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses == sorted(losses, reverse=True)
    assert module.get_parameters_size() == sum(p.data.size for _, p in state.parameters)
