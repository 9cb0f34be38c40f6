"""Modules by the names of their code, and their weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from onward.checkpoints import tensor_files
from onward.errors import OnwardError
from onward.pytorch.module_source import load_module, load_weights

NET = """
from torch import nn
import neighbour
class Small(nn.Linear):
    def __init__(self, width=3): super().__init__(width, neighbour.CLASSES)
def make(width): return Small(width)
ready = Small()
number = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "small_net", raising=False)
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    (tmp_path / "neighbour.py").write_text("CLASSES = 2")
    (tmp_path / "small_net.py").write_text(NET)
    return tmp_path / "small_net.py"


def test_module_is_loaded_by_file_and_by_import(code: Path) -> None:
    for source in (f"{code}:make", "small_net:Small"):
        found = load_module(source, [4])
        assert isinstance(found, nn.Linear) and found.in_features == 4
    assert isinstance(load_module("small_net:ready"), nn.Linear)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("small_net.py:Smal", "small_net.py has no attribute 'Smal'\ndid you mean 'Small'"),
        ("small_nett.py:Small", "no Python file at small_nett.py\ndid you mean 'small_net.py'"),
        ("no_such_package:Net", "no_such_package cannot be imported"),
        ("small_net:number", "is int, not a torch.nn.Module"),
        ("small_net:make", "cannot be made: TypeError.*width.*\ngive its arguments"),
        (
            "small_net.py",
            "not a Python module\nwrite package.module:attribute",
        ),
        (".", "has no config.json"),
    ],
)
@pytest.mark.usefixtures("code")
def test_wrong_source_is_explained(source: str, message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        load_module(source)


def test_weights_are_loaded(tmp_path: Path) -> None:
    saved = nn.Linear(3, 2)
    torch.save({"epoch": 3, "state_dict": saved.state_dict()}, tmp_path / "w.pt")
    arrays = {name: tensor.numpy() for name, tensor in saved.state_dict().items()}
    tensor_files.write(tmp_path / "w.safetensors", arrays, {})
    for name in ("w.pt", "w.safetensors"):
        module = nn.Linear(3, 2)
        load_weights(module, tmp_path / name)
        assert torch.equal(module.weight, saved.weight)


def test_tied_weights_may_be_there_once(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    tensors = {name: t for name, t in tied.state_dict().items() if name != "1.weight"}
    torch.save(tensors, tmp_path / "w.pt")
    load_weights(tied, tmp_path / "w.pt")


def test_wrong_weights_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    cases = [
        ({"wieght": torch.ones(2, 3)}, "no tensor 'wieght'\ndid you mean 'weight'"),
        ({"weight": torch.ones(2, 9)}, r"shape \[2, 9\], the module \[2, 3\]"),
        ({"weight": torch.ones(2, 3)}, "no values for 'bias'"),
        ([1, 2], "not a state_dict"),
        (nn.Linear(3, 2), "more than tensors, and unpickling it may run any code"),
    ]
    for held, message in cases:
        torch.save(held, path)
        with pytest.raises(OnwardError, match=message):
            load_weights(nn.Linear(3, 2), path)
    path.write_bytes(b"nonsense")
    with pytest.raises(OnwardError, match=r"w\.pt"):
        load_weights(nn.Linear(3, 2), path)
    with pytest.raises(OnwardError, match="no checkpoint at"):
        load_weights(nn.Linear(3, 2), tmp_path / "none.pt")
