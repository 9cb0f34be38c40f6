"""Packed graphs: the session's graphs in the metadata match the models' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onward.graph.builder import OpBuilder
from onward.losses import Huber
from onward.optimizers.sgd import SGD
from onward.training import onnxblock
from onward.training.api import CheckpointState, Module
from onward.training.api.graph_sessions import TRAIN
from onward.training.api.training_graph import STEP, SummingGraph
from onward.training.artifacts import LossType
from tests.training.api.made import NAMES, Folder, batch, make, normalized
from tests.training.nets import convolutional


def without_step(folder: Folder, target: Path) -> Folder:
    """The same artifacts, with only the training model's own graph."""
    target.mkdir()
    for path in folder.path.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    model = onnx.load(folder.training)
    kept = [prop for prop in model.metadata_props if prop.key != STEP]
    assert len(kept) == len(model.metadata_props) - 1
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, target / "training_model.onnx")
    return Folder(target)


def images() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 2, 3)).astype(np.float32), np.ones((4, 2, 3), np.float32)


CASES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "cross entropy": (None, {}, batch),
    "outputs": (None, {"additional_output_names": ["output"]}, batch),
    "clipped": (
        None,
        {"optimizer": onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(0.1))},
        batch,
    ),
    "an input's gradient": (None, {"requires_grad": [*NAMES, "input"]}, batch),
    "many losses": (None, {"loss": onnxblock.loss.CrossEntropyLoss(reduction="none")}, batch),
    "statistics": (normalized(), {"loss": LossType.MSELoss}, images),
    "a loss of Onward's": (normalized(), {"loss": Huber()}, images),
}


@pytest.mark.parametrize("case", CASES)
def test_packed_step_matches_the_training_model(case: str, tmp_path: Path) -> None:
    model, settings, feeds = CASES[case]
    folder = make(tmp_path / "packed", model, **settings)
    own = without_step(folder, tmp_path / "own")
    (state, module, optimizer), (other, plain, updates) = folder.open(), own.open()
    assert isinstance(plain._opener.open(TRAIN), SummingGraph)
    assert not isinstance(module._opener.open(TRAIN), SummingGraph)
    assert module.output_names() == plain.output_names()
    assert module.input_names() == plain.input_names()
    for _ in range(3):
        for _ in range(2):  # accumulated
            for one, two in zip(_listed(module(*feeds())), _listed(plain(*feeds()))):
                assert one.shape == two.shape
                np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
        for name, gradient in module.input_gradients.items():
            np.testing.assert_allclose(gradient, plain.input_gradients[name], rtol=1e-5, atol=1e-7)
        for each in (optimizer, updates):
            each.step()
        for each in (module, plain):
            each.lazy_reset_grad()
    for name, parameter in state.parameters:
        np.testing.assert_allclose(parameter.data, other[name].data, rtol=1e-4, atol=1e-5)


def _listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def test_changed_model_runs_its_own_graph(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    model = onnx.load(whole.training)
    logits = next(node for node in model.graph.node if node.op_type == "SoftmaxCrossEntropyLoss")
    model.graph.node.append(onnx.helper.make_node("Identity", [logits.output[0]], ["shown"]))
    shown = onnx.ValueInfoProto()
    shown.CopyFrom(model.graph.output[0])
    shown.name = "shown"
    model.graph.output.append(shown)
    onnx.save(model, tmp_path / "changed.onnx")
    state = CheckpointState.load_checkpoint(whole.checkpoint)
    loss, again = Module(tmp_path / "changed.onnx", state)(*batch())
    assert loss == again == whole.open()[1](*batch())


def test_large_weights_are_not_stored_twice(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("input", "float32", ("batch", 4))
    table = op.initializer("table", np.ones((4, 1 << 19), np.float32))
    hidden = op.Slice(op.MatMul(x, table), np.array([0]), np.array([8]), np.array([1]))
    w = op.initializer("w", np.ones((8, 3), np.float32))
    folder = make(tmp_path, op.model(output=op.MatMul(hidden, w)), requires_grad=["w"])
    assert folder.training.stat().st_size < 1.1 * (4 << 21)
    assert np.isfinite(folder.open()[1](*batch()))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types_run_the_models_own_graph(dtype: str, tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("input", dtype, ("batch", 4))
    w = op.initializer("w", np.ones((4, 3), dtype))
    model = op.model(output=op.Cast(op.MatMul(x, w), to=1))
    folder = make(tmp_path, model, requires_grad=["w"], optimizer=SGD(lr=0.5, momentum=0.9))
    keys = {prop.key for prop in onnx.load(folder.training).metadata_props}
    assert (STEP in keys) == (dtype == "float64")
    state, module, optimizer = folder.open()
    x, labels = batch()
    losses = []
    for _ in range(5):
        losses.append(float(module(x.astype(dtype), labels)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses == sorted(losses, reverse=True)
    assert state["w"].data.dtype == dtype


def test_resumed_training_draws_the_same_dropout(tmp_path: Path) -> None:
    folder = make(
        tmp_path / "a",
        convolutional(dropout=True),
        loss=LossType.MSELoss,
        requires_grad=["fc.weight"],
    )
    rng = np.random.default_rng(0)
    state, module, optimizer = folder.open()
    sizes = [(2, 1, 6, 6), (2, 3)]
    x, y = (rng.normal(size=size).astype(np.float32) for size in sizes)
    assert len({float(module(x, y)) for _ in range(4)}) == 4
    optimizer.step()
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    module.lazy_reset_grad()
    expected = [float(module(x, y)) for _ in range(3)]
    _, again, _ = folder.open(tmp_path / "later")
    assert [float(again(x, y)) for _ in range(3)] == expected
