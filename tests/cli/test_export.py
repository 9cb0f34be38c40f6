"""onward export: modules and Hugging Face folders as ONNX, training artifacts, errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.cli.conftest import Call, is_one_line

torch = pytest.importorskip("torch")

NET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width, classes=3):
        super().__init__()
        self.first, self.norm = nn.Linear(width, 4), nn.BatchNorm1d(4)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(4, classes)
    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu()))
"""
INPUTS = ("--inputs", "x=float32[batch,5]")
MODULE = ("exported_net.py:Net", "--args", "[5]")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "exported_net", raising=False)
    Path("exported_net.py").write_text(NET)


def test_module_with_weights_is_exported_and_compared(call: Call) -> None:
    names: dict[str, object] = {}
    exec(NET, names)
    net = names["Net"](5, classes=2)  # type: ignore[operator]
    torch.save(net.state_dict(), "net.pt")
    more = ("--kwargs", '{"classes": 2}', "--weights", "net.pt", "--save", "net.onnx")
    called = call("export", *MODULE, *INPUTS, *more)
    assert called.code == 0, called
    for words in ("net.onnx: ", "input x", "FLOAT[batch,5]", "parameters, opset 18", "as PyTorch"):
        assert words in called.out
    x = np.ones((7, 5), np.float32)
    [found] = onnxruntime.InferenceSession("net.onnx").run(None, {"x": x})
    expected = net.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_model_that_differs_has_exit_code_1(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.pytorch import onnx_export

    monkeypatch.setattr(onnx_export, "_difference", lambda *_: (0.5, False))
    called = call("export", *MODULE, *INPUTS, "--save", "net.onnx", "--json")
    facts = json.loads(called.out)
    assert called.code == 1
    assert facts["difference"] == 0.5 and not facts["agrees"]
    assert facts["files"]["net.onnx"] == Path("net.onnx").stat().st_size


@pytest.mark.integration
def test_artifacts_train(call: Call) -> None:
    from onward.training.api import CheckpointState, Module, Optimizer

    called = call(
        *("export", *MODULE, *INPUTS),
        *("--training", "artifacts", "--loss", "cross_entropy", "--optimizer", "sgd"),
    )
    assert called.code == 0, called
    state = CheckpointState.load_checkpoint("artifacts/checkpoint")
    module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
    optimizer = Optimizer("artifacts/optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.1)
    assert {name for name, _ in state.parameters} >= {"first.weight", "norm.bias", "last.bias"}
    x, y = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32), np.arange(6) % 3
    module.train()
    values = []
    for _ in range(5):
        values.append(float(np.asarray(module(x, y))))
        optimizer.step()
        module.lazy_reset_grad()
    assert np.isfinite(values).all()


@pytest.mark.integration
def test_hugging_face_folder_is_exported(call: Call, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=16,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    called = call("export", "bert", "--save", "bert.onnx", "--json")
    assert called.code == 0, called
    facts = json.loads(called.out)
    assert facts["agrees"] and facts["outputs"] == {"logits": "FLOAT[batch,2]"}
    assert facts["inputs"]["input_ids"] == "INT64[batch,sequence]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*MODULE, *INPUTS), ("give --save FILE",)),
        ((*MODULE, "--save", "m.onnx"), ("shapes of the inputs are not known", "--inputs")),
        ((*MODULE, *INPUTS, "--training", "a"), ("--training needs --loss", "cross_entropy")),
        (
            (*MODULE, *INPUTS, "--training", "a", "--loss", "mse", "--optimizer", "adamm"),
            ("no optimizer 'adamm'", "did you mean 'adam"),
        ),
        (("exported_net.py:Nett", "--save", "m.onnx"), ("no attribute 'Nett'", "'Net'")),
        (("exported_net.py:Net", "--args", "[5", "--save", "m.onnx"), ("--args is not JSON",)),
        ((*MODULE, "-i", "y=float32[2,5]", "--save", "m.onnx"), ("no argument 'y'",)),
        ((*MODULE, "-i", "x=float32[2,6]", "--save", "m.onnx"), ("5",)),
    ],
)
def test_wrong_arguments_are_one_line(
    call: Call, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert is_one_line(call("export", *arguments), *words)
    assert not Path("m.onnx").exists()
