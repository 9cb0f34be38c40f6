"""Export of PyTorch modules: files that stock onnxruntime runs and that sessions train."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import onward
from onward import losses, optimizers
from onward.errors import OptionError
from onward.pytorch import export
from onward.pytorch.input_examples import check_names, read_inputs
from onward.pytorch.onnx_export import _difference, to_onnx


class Net(nn.Module):
    """A frozen layer, BatchNorm, Dropout, one weight that is used twice, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.mix = nn.Linear(3, 3)
        self.again = nn.Linear(3, 3)
        self.again.weight = self.mix.weight
        self.conv.weight.requires_grad_(False)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.norm(self.conv(image)).relu().mean((2, 3))
        return {"logits": self.again(self.drop(self.mix(features))), "features": features}


def test_exported_model_runs_in_onnxruntime_and_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, image = Net(), torch.randn(2, 1, 6, 6)
    net.norm.running_mean.normal_()
    found = export(net, image, tmp_path / "net.onnx")
    assert net.training and net.norm.training
    assert found.agrees and found.difference is not None and found.difference < 1e-5
    assert found.inputs == {"image": "FLOAT[batch,1,6,6]"}
    assert found.outputs == {"logits": "FLOAT[batch,3]", "features": "FLOAT[batch,3]"}

    more = torch.randn(5, 1, 6, 6)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    logits, _ = session.run(None, {"image": more.numpy()})
    expected = net.eval()(more)["logits"].detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)

    model = onward.load(tmp_path / "net.onnx")
    assert {node.op_type for node in model.graph} >= {"BatchNormalization", "Conv"}
    assert not any("stack_trace" in key for node in model.graph for key in node.metadata_props)
    trained = onward.TrainingSession(tmp_path / "net.onnx", losses.CrossEntropy(), optimizers.SGD())
    names = {"norm.weight", "norm.bias", "mix.weight", "mix.bias", "again.bias"}
    assert set(trained.parameters) == names
    assert set(trained.statistics) == {"norm.running_mean", "norm.running_var"}


def test_model_for_training_keeps_dropout() -> None:
    model = to_onnx(onward.Module(Net()), torch.randn(2, 1, 6, 6), training=True)
    assert "Dropout" in {node.op_type for node in model.graph}
    assert [value.name for value in model.graph.outputs] == ["logits", "features"]


@pytest.mark.parametrize("opset", [13, 17, 21, 23, 24])
def test_opset_is_converted(opset: int, tmp_path: Path) -> None:
    found = export(nn.Linear(3, 2), torch.ones(4, 3), tmp_path / "m.onnx", opset=opset)
    assert found.agrees
    assert found.opset == opset
    assert ir.load(tmp_path / "m.onnx").opset_imports[""] == found.opset


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    x, path = torch.ones(4, 3), tmp_path / "m.onnx"
    with pytest.raises(OptionError, match="the opset must be from 13 to"):
        export(nn.Linear(3, 2), x, path, opset=5)
    with pytest.raises(OptionError, match="the call has no tensor 'x'"):
        export(nn.Linear(3, 2), x, path, dynamic={"x": {0: "batch"}})
    with pytest.raises(OptionError, match="the module works only with width = 3"):
        export(nn.Linear(3, 2), x, path, dynamic={"input": {1: "width"}})


def test_differences_beyond_rounding_are_found() -> None:
    y = np.array([1.0, 100.0])
    assert _difference(y, y + 0.01) == (pytest.approx(0.01), True)
    assert _difference(y, y + 1.0) == (1.0, False)
    assert _difference(y, np.array([1.0, np.nan])) == (np.inf, False)
    assert _difference(y, y[:1]) == (np.inf, False)


# -- inputs --------------------------------------------------------------------------------------


def test_inputs_are_read_from_text() -> None:
    found = read_inputs(["ids=int64[batch,length]", "x=float16[batch,3,size:8]", "mask=bool[4]"])
    assert [list(t.shape) for t in found.tensors.values()] == [[2, 5], [2, 3, 8], [4]]
    assert found.tensors["x"].dtype == torch.float16 and bool(found.tensors["mask"].all())
    assert found.dynamic == {
        "ids": {0: "batch", 1: "length"},
        "x": {0: "batch", 2: "size"},
        "mask": {},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "takes NAME=TYPE"),
        ("x=flaot32[2]", "no type 'flaot32'\ndid you mean 'float32'"),
        ("x=float32[2,-1]", "'-1' is not a size"),
        ("missing.npz", "no file of examples at missing.npz"),
    ],
)
def test_wrong_inputs_are_explained(text: str, message: str) -> None:
    with pytest.raises((OptionError, FileNotFoundError), match=message):
        read_inputs([text])


def test_names_of_inputs_are_checked() -> None:
    with pytest.raises(OptionError, match="no argument 'imgae'\ndid you mean 'image'"):
        check_names(Net(), ["imgae"])
    with pytest.raises(OptionError, match=r"Net.forward needs the argument 'image'"):
        check_names(Net(), [])
