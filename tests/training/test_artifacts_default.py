"""What generate_artifacts trains by default: the same parameters as a TrainingSession."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from onward.checkpoints import file_contents
from onward.losses import MSE
from onward.optimizers import SGD
from onward.sessions.training.session import TrainingSession
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from tests.passes.exporters.test_provenance import Recurrent
from tests.passes.exporters.test_provenance import model as plain_model
from tests.passes.exporters.test_restore_parameters import CASES
from tests.programs.test_select import branches, compared
from tests.sessions.training.exported_models import exported
from tests.training.nets import Loop, convolutional, float_info, model_of, names


def written(model: Any, folder: Path) -> Loop:
    generate_artifacts(
        model, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=folder
    )
    return Loop(folder)


@pytest.mark.parametrize("make", [plain_model, compared, branches, *CASES])
def test_default_parameters_match_a_session(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = exported(CASES[make][0](), CASES[make][1]) if make in CASES else make()
    loop = written(model, tmp_path)
    session = TrainingSession(model, MSE(), SGD(lr=0.1))
    assert sorted(loop.trained) == sorted(session.parameters)
    for name, array in session.parameters.items():
        np.testing.assert_array_equal(loop.parameters[name], array)


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize("name", CASES)
def test_a_default_export_of_torch_is_trained_as_by_a_session(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, x = CASES[name]
    module = make()
    loop = written(exported(module, x), tmp_path)
    session = TrainingSession(exported(module, x), MSE(), SGD(lr=0.1))
    target = np.random.default_rng(0).normal(size=module(x).shape).astype(np.float32)
    for _ in range(3):
        loss = loop.loss({"x": x.numpy(), "target": target})
        results = session.step({"x": x.numpy(), "target": target})
        np.testing.assert_allclose(loss, results["loss"], rtol=1e-5)
        loop.update(0.1)


def test_weights_of_one_name_in_two_branches_are_two_parameters(tmp_path: Path) -> None:
    loop = written(branches(), tmp_path)
    before = dict(loop.parameters)
    for which in (True, False):
        feeds = {"c": np.array(which), "x": np.ones((3, 2), np.float32)}
        feeds["target"] = np.zeros((3, 2), np.float32)
        loss = loop.loss(feeds)
        assert loop.evaluate(feeds) == pytest.approx(loss)
        loop.update(0.01)
    assert len(before) == 2
    assert all((loop.parameters[name] != array).all() for name, array in before.items())


def test_frozen_weights_may_feed_an_operator_without_a_gradient(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "first"], ["hidden"]),
        helper.make_node("Mystery", ["hidden"], ["strange"], domain="ops.mine"),
        helper.make_node("Mul", ["strange", "last"], ["output"]),
    ]
    weights = {name: np.ones(3, np.float32) for name in ("first", "last")}
    values = {name: float_info(name, [2, 3]) for name in ("x", "strange", "output")}
    model = model_of(nodes, [values["x"]], [values["output"]], weights)
    model.graph.value_info.append(values["strange"])
    model.opset_import.append(helper.make_opsetid("ops.mine", 1))
    generate_artifacts(
        model, frozen_params=["first"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    stored = file_contents.read(tmp_path / "checkpoint").parameters
    assert [name for name, one in stored.items() if one.requires_grad] == ["last"]


def test_initializers_that_are_listed_as_inputs_are_parameters(tmp_path: Path) -> None:
    model = convolutional()
    for tensor in model.graph.initializer:
        value = helper.make_tensor_value_info(tensor.name, tensor.data_type, [*tensor.dims])
        model.graph.input.append(value)
    loop, plain = written(model, tmp_path / "a"), written(convolutional(), tmp_path / "b")
    assert loop.trained == plain.trained
    assert names(loop.training.get_inputs()) == names(plain.training.get_inputs())
    assert sorted(loop.parameters) == sorted(plain.parameters)


@pytest.mark.integration
def test_ambiguous_optimized_export_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = exported(Recurrent(), torch.randn(2, 5, 3))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "onward"):
        written(model, tmp_path)
    [record] = [each for each in caplog.records if each.name == "onward"]
    assert "'cell.weight_hh_l0', 'cell.bias_hh_l0'" in record.getMessage()


def test_given_model_is_not_changed(tmp_path: Path) -> None:
    for model in (branches(), exported(*[CASES["tied"][0](), CASES["tied"][1]])):
        before = onnx.ModelProto()
        before.CopyFrom(model)
        written(model, tmp_path)
        assert model == before
    graph = ir.from_proto(branches())
    written(graph, tmp_path)
    assert ir.to_proto(graph) == ir.to_proto(ir.from_proto(branches()))
