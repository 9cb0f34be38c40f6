"""Models whose weights are in other files: opened and run from every source, in every layout."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import onward
from onward.errors import InvalidModel
from onward.graph.builder import OpBuilder
from onward.graph.external import external_tensors, forget_pages
from onward.graph.mapped import MappedTensor
from onward.graph.summary import summarize
from onward.providers.ort.provider import serialize
from onward.training.api import CheckpointState, Module
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from tests.layouts import LAYOUTS, Layout, many_weights, save_in_layout

CPU, TORCH, REFERENCE, OPENVINO = (
    f"{name}ExecutionProvider" for name in ("CPU", "Torch", "Reference", "OpenVINO")
)
PROVIDERS = [None, CPU, TORCH, REFERENCE, OPENVINO]
X = {"x": np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)}


def answer(source: Any, provider: str | None = CPU, **options: Any) -> Any:
    providers = None if provider is None else [provider]
    session = onward.InferenceSession(source, onward.SessionOptions(**options), providers)
    return session.run(None, X)[0]


@pytest.fixture(scope="module")
def answers() -> dict[str | None, Any]:
    """What the same model gives with its weights inside."""
    here = [None, *onward.get_available_providers()]
    return {each: answer(many_weights(), each) for each in PROVIDERS if each in here}


@pytest.mark.sampled("layout")
@pytest.mark.sampled("provider")
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_gives_the_answers_of_the_model_with_its_weights_inside(
    tmp_path: Path, answers: dict[str | None, Any], layout: Layout, provider: str | None
) -> None:
    path = save_in_layout(many_weights(), tmp_path, layout)
    np.testing.assert_array_equal(answer(path, provider), answers[provider])


@pytest.mark.parametrize("level", [0, 1, 2, 99])
def test_every_level_of_optimization_opens_external_weights(
    tmp_path: Path, answers: dict[str | None, Any], level: int
) -> None:
    path = save_in_layout(many_weights(), tmp_path, Layout())
    for own_passes in (False, True):
        got = answer(path, CPU, graph_optimization_level=level, own_passes=own_passes)
        np.testing.assert_allclose(got, answers[TORCH], rtol=1e-2, atol=1e-2)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)
        self.norm = torch.nn.BatchNorm1d(128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))  # type: ignore[no-any-return]


@pytest.mark.sampled()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimize", [True, False])
def test_default_torch_exports_open(tmp_path: Path, optimize: bool) -> None:
    net, x = Net().eval(), torch.from_numpy(X["x"])
    path = tmp_path / "mlp.onnx"
    torch.onnx.export(net, (x,), path, input_names=["x"], verbose=False, optimize=optimize)
    assert (tmp_path / "mlp.onnx.data").exists()
    for provider in PROVIDERS:
        wanted = net(x).detach().numpy()
        np.testing.assert_allclose(answer(path, provider), wanted, rtol=1e-4, atol=1e-5)


# -- sources ---------------------------------------------------------------------------------------


def test_a_path_opens_as_text_as_path_and_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str | None, Any]
) -> None:
    path = save_in_layout(many_weights(), tmp_path / "sub", Layout())
    monkeypatch.chdir(tmp_path)
    for source in (path, str(path), "sub/m.onnx", Path("sub/m.onnx")):
        np.testing.assert_array_equal(answer(source), answers[CPU])


@pytest.mark.integration
def test_a_message_with_its_weights_loaded_opens_and_one_without_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str | None, Any]
) -> None:
    path = save_in_layout(many_weights(), tmp_path, Layout(attributes=False))
    np.testing.assert_array_equal(answer(onnx.load(path)), answers[CPU])
    monkeypatch.chdir(tmp_path)  # where onnxruntime itself would look
    for source in (onnx.load(path, load_external_data=False), path.read_bytes()):
        for options in ({}, {"isolated": True}):
            with pytest.raises(InvalidModel, match=r"came without a folder\nload it by its path"):
                answer(source, **options)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_graph_of_onnx_ir_opens_and_stays_as_it_was(
    tmp_path: Path, answers: dict[str | None, Any], provider: str | None
) -> None:
    path = save_in_layout(many_weights(), tmp_path, Layout(attributes=False))
    for model in (ir.load(path), onward.load(path)):
        tensors = [value.const_value for value in model.graph.initializers.values()]
        held = [tensor.numpy() for tensor in tensors if tensor is not None]
        copies = [array.copy() for array in held]
        for _ in range(2):
            np.testing.assert_array_equal(answer(model, provider), answers[provider])
        assert [value.const_value for value in model.graph.initializers.values()] == tensors
        for array, copy in zip(held, copies, strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.integration
def test_an_isolated_session_opens_external_weights(
    tmp_path: Path, answers: dict[str | None, Any]
) -> None:
    path = save_in_layout(many_weights(), tmp_path, Layout(files=2))
    without_attributes = save_in_layout(many_weights(), tmp_path / "b", Layout(attributes=False))
    for source in (path, onward.load(path), ir.load(without_attributes)):
        np.testing.assert_array_equal(answer(source, isolated=True), answers[CPU])


# -- after opening ---------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_files_may_go_and_the_folder_change_after_opening(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str | None, Any],
    provider: str | None,
) -> None:
    save_in_layout(many_weights(), tmp_path / "sub", Layout(files=2))
    monkeypatch.chdir(tmp_path / "sub")
    model = onward.load("m.onnx")
    session = onward.InferenceSession("m.onnx", providers=None if provider is None else [provider])
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "sub")
    np.testing.assert_array_equal(session.run(None, X)[0], answers[provider])
    np.testing.assert_array_equal(answer(model, provider), answers[provider])


def test_a_session_by_a_relative_path_changes_providers_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str | None, Any]
) -> None:
    save_in_layout(many_weights(), tmp_path, Layout())
    monkeypatch.chdir(tmp_path)
    session = onward.InferenceSession("m.onnx", providers=[CPU])
    monkeypatch.chdir(os.path.dirname(tmp_path))
    assert session.memory_plan({"n": 3}).weights > 0
    session.set_providers([TORCH])
    np.testing.assert_array_equal(session.run(None, X)[0], answers[TORCH])


def test_large_weights_reach_onnxruntime_as_views_of_the_mapped_file(tmp_path: Path) -> None:
    model = onward.load(save_in_layout(many_weights(), tmp_path, Layout()))
    tensors = {tensor.name: tensor for tensor in external_tensors(model)}
    (mapping,) = {
        id(t.raw): t.raw for t in tensors.values() if isinstance(t, MappedTensor)
    }.values()
    whole = np.frombuffer(mapping, np.uint8)
    _, outside = serialize(model)
    assert list(outside) == ["w"]
    assert np.shares_memory(outside["w"], whole)
    forget_pages(model)
    assert outside["w"].shape == (64, 32)
    assert not any(isinstance(tensor, ir.ExternalTensor) for tensor in external_tensors(model))


# -- whoever else opens models ---------------------------------------------------------------------


def classifier() -> onnx.ModelProto:
    """x (n, 64) -> y (n, 4), with small weights behind large ones and a mask that is no weight."""
    rng = np.random.default_rng(0)
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("n", 64))
    w, v = ((rng.normal(size=size) / 8).astype(np.float32) for size in ((64, 32), (32, 4)))
    h = op.Relu(op.Add(op.MatMul(x, op.initializer("w", w)), op.initializer("b", w[0])))
    h = op.Mul(h, op.initializer("mask", np.ones((1, 32), np.float32)))
    y = op.Add(op.MatMul(h, op.initializer("v", v)), op.initializer("c", v[0]))
    return ir.to_proto(op.model(y=y))


def train(source: Any, target: Path) -> list[Any]:
    session = onward.TrainingSession(
        source, onward.losses.CrossEntropy(), onward.optimizers.SGD(lr=0.1), {"frozen": ["mask"]}
    )
    labels = np.array([0, 1, 2], np.int64)
    found = [session.step({**X, "labels": labels})["loss"] for _ in range(3)]
    session.export(target)
    return [*found, answer(target)]


@pytest.mark.sampled(last=True)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_training_and_export_are_those_of_the_model_with_its_weights_inside(
    tmp_path: Path, layout: Layout
) -> None:
    path = save_in_layout(classifier(), tmp_path, layout)
    wanted = train(classifier(), tmp_path / "inside.onnx")
    for source in (path, onward.load(path), ir.load(path)):
        got = train(source, tmp_path / "outside.onnx")
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert (
        not onnx.load(tmp_path / "outside.onnx", load_external_data=False)
        .graph.initializer[0]
        .external_data
    )


def test_gradients_of_a_model_with_external_weights(tmp_path: Path) -> None:
    path = save_in_layout(classifier(), tmp_path, Layout())
    cotangent = np.ones((3, 4), np.float32)
    found = []
    for source in (classifier(), path, onward.load(path)):
        grown = onward.gradient(source, {"y": "dy"}, ["w", "b", "c"])
        onward.save(grown, tmp_path / "g.onnx")
        session = onward.InferenceSession(tmp_path / "g.onnx", providers=[CPU])
        found.append(session.run(None, {**X, "dy": cotangent}))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_artifacts_of_a_model_with_external_weights(tmp_path: Path) -> None:
    path = save_in_layout(classifier(), tmp_path / "model", Layout())
    made = []
    for number, source in enumerate((classifier(), path, str(path), onward.load(path))):
        folder = tmp_path / str(number)
        generate_artifacts(
            source, requires_grad=["w", "b", "v", "c"], frozen_params=["mask"],
            loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=folder,
        )  # fmt: skip
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
        made.append(module(X["x"], np.array([0, 1, 2], np.int64)))
    assert len({float(np.asarray(loss)) for loss in made}) == 1


@pytest.mark.integration
def test_a_memory_plan_and_a_summary_of_external_weights(tmp_path: Path) -> None:
    path = save_in_layout(many_weights(), tmp_path, Layout(files=2))
    assert (
        onward.plan_memory(path, {"n": 3}).weights
        == onward.plan_memory(many_weights(), {"n": 3}).weights
    )
    files = summarize(onward.load(path)).external_files
    assert files.keys() == {"m.0.data", "m.1.data"}
