"""Arguments that generate_artifacts refuses, and its error messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
import torch
from torch import nn

from onward.errors import OptionError
from onward.optimizers.groups import Group
from onward.training import onnxblock
from onward.training.api import CheckpointState
from onward.training.artifacts import LossType, OptimType, generate_artifacts
from tests.passes.exporters.test_restore_parameters import OLDER
from tests.sessions.training.exported_models import exported_by_torchscript
from tests.training.nets import (
    MLP,
    mlp,
    two_outputs,
)


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_parameter_cannot_be_frozen_and_trained(tmp_path: Path) -> None:
    law = "A parameter cannot be frozen and require gradient computation at the same time"
    with pytest.raises(RuntimeError, match=law + " {'fc1.bias'}\nLeave it out of frozen_params"):
        generate_artifacts(mlp(), ["fc1.bias"], ["fc1.bias"], artifact_directory=tmp_path)
    assert written(tmp_path) == []


@pytest.mark.parametrize("loss", ["MSELoss", 2, onnxblock.loss.MSELoss, object()])
def test_an_unknown_loss_is_refused(loss: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Unknown loss provided <class .*Expected loss to be"):
        generate_artifacts(mlp(), list(MLP), loss=loss)


@pytest.mark.parametrize("optimizer", ["AdamW", 1, onnxblock.optim.AdamW, object()])
def test_an_unknown_optimizer_is_refused_before_anything_is_written(
    tmp_path: Path, optimizer: Any
) -> None:
    with pytest.raises(TypeError, match=r"Unknown optimizer provided <class .*OptimType or"):
        generate_artifacts(
            mlp(),
            list(MLP),
            loss=LossType.MSELoss,
            optimizer=optimizer,
            artifact_directory=tmp_path,
        )
    assert written(tmp_path) == []


def test_additional_output_names_are_a_list() -> None:
    law = r"Unknown type provided for additional output names <class 'str'>.*a list of strings"
    with pytest.raises(RuntimeError, match=law):
        generate_artifacts(mlp(), list(MLP), additional_output_names="output")  # type: ignore[arg-type]


def test_missing_output_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="The provided name nothing is not a graph value info"):
        generate_artifacts(
            mlp(), list(MLP), loss=LossType.MSELoss, additional_output_names=["nothing"]
        )


def test_a_named_loss_reads_one_output_and_a_target() -> None:
    law = (
        "MSELoss reads one output, and a target that may be another, not 3: a, b, a\\n"
        r"Name the output that it reads: loss_input_names=\['a'\]"
    )
    with pytest.raises(RuntimeError, match=law):
        generate_artifacts(
            two_outputs(), ["wa"], loss=LossType.MSELoss, loss_input_names=["a", "b", "a"]
        )


def test_float_output_is_refused_as_labels() -> None:
    law = (
        "cross entropy reads labels of INT64 or INT32, and 'b' is FLOAT\\n"
        r"if it is one more output of the model: loss_input_names=\['a'\]"
    )
    with pytest.raises(RuntimeError, match=law):
        generate_artifacts(two_outputs(), ["wa"], loss=LossType.CrossEntropyLoss)


def test_model_of_another_type_is_refused() -> None:
    law = "Please pass in either a string or an ONNX ModelProto for the model, not <class 'int'>"
    with pytest.raises(RuntimeError, match=law):
        generate_artifacts(3)  # type: ignore[arg-type]


def test_proto_over_two_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.training.onnxblock.model_accessor.PROTOBUF_LIMIT", 10)
    with pytest.raises(RuntimeError, match=r"This model is > 2GB .*Please pass in a path"):
        generate_artifacts(mlp(), list(MLP), loss=LossType.MSELoss)


def test_a_parameter_that_the_model_does_not_have_is_refused() -> None:
    law = "'fc3.bias' cannot require a gradient: the model has no value of this name"
    with pytest.raises(OptionError, match=law):
        generate_artifacts(mlp(), ["fc3.bias"], loss=LossType.MSELoss)


def test_a_parameter_that_the_loss_does_not_read_is_refused() -> None:
    with pytest.raises(OptionError, match="does not depend on 'wb'"):
        generate_artifacts(two_outputs(), ["wb"], loss=LossType.MSELoss, loss_input_names=["a"])


def test_groups_need_an_optimizer_of_onward() -> None:
    with pytest.raises(OptionError, match="groups need an optimizer of onward"):
        generate_artifacts(
            mlp(),
            list(MLP),
            optimizer=OptimType.AdamW,
            groups=[Group(parameters="*.bias", lr=0.1)],
        )


def test_missing_custom_op_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"Custom op library path .*nowhere.so does not exist"):
        generate_artifacts(
            mlp(), list(MLP), loss=LossType.MSELoss, custom_op_library=tmp_path / "nowhere.so"
        )


def test_enum_values_match_the_peer() -> None:
    assert {each.name: each.value for each in LossType} == {
        "MSELoss": 1,
        "CrossEntropyLoss": 2,
        "BCEWithLogitsLoss": 3,
        "L1Loss": 4,
    }
    assert {each.name: each.value for each in OptimType} == {"AdamW": 1, "SGD": 2}


# -- exports of torch ------------------------------------------------------------------------------


def normalized() -> tuple[nn.Module, torch.Tensor]:
    """Fresh layers, whose ones and zeros are equal: 10 parameters."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8)]
    return nn.Sequential(*layers, nn.Linear(8, 3)).eval(), torch.randn(4, 8)


RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "for training": {
        "training": torch.onnx.TrainingMode.TRAINING,
        "do_constant_folding": False,
        "export_params": True,
    },
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_all_requested_torch_parameters_are_trained(recipe: str, tmp_path: Path) -> None:
    network, x = normalized()
    names = [name for name, _ in network.named_parameters()]
    model = exported_by_torchscript(network, x, **RECIPES[recipe])
    generate_artifacts(
        model, requires_grad=names, loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert sorted(name for name, _ in state.parameters) == sorted(names) and len(names) == 10


def test_folded_parameters_are_refused_with_advice(
    tmp_path: Path,
) -> None:
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    model = exported_by_torchscript(network, torch.randn(2, 2, 5, 5))
    names = [name for name, _ in network.named_parameters()]
    law = (
        "'0.weight', '0.bias', '1.weight', '1.bias' cannot require a gradient: the model has no "
        r"values of these names\nits parameters are 'onnx::Conv_\d+', 'onnx::Conv_\d+'; torch "
        "merges, folds and renames parameters unless it exports with "
        "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False"
    )
    with pytest.raises(OptionError, match=law):
        generate_artifacts(
            model, requires_grad=names, loss=LossType.MSELoss, artifact_directory=tmp_path
        )
    assert written(tmp_path) == []


def test_missing_frozen_parameter_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    generate_artifacts(
        mlp(), frozen_params=["fc3.bias"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    assert "frozen_params: the model has no 'fc3.bias'; did you mean 'fc" in caplog.text


def test_copy_of_a_weight_is_refused() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}>
    { v = Identity(w) h = MatMul(x, w) y = MatMul(h, v) }"""
    law = "'v' cannot be trained: it is a copy of 'w' by Identity\ntrain 'w' instead"
    with pytest.raises(OptionError, match=law):
        generate_artifacts(onnx.parser.parse_model(text), ["v"], loss=LossType.MSELoss)


def test_weights_that_are_tied_by_name_are_one_parameter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, x, _ = OLDER["equal, no bias"]
    model = exported_by_torchscript(make(), x)
    first, second = sorted(
        {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input[1:]}
    )
    for tied, count in ((None, 2), ([[first, second]], 1)):
        folder = tmp_path / str(count)
        generate_artifacts(model, loss=LossType.MSELoss, tied=tied, artifact_directory=folder)
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        assert len(list(state.parameters)) == count
