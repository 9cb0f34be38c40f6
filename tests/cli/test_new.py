"""onward new: the list of architectures, the models that it writes, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

import onward
from onward.runner.architectures.new_model import ARCHITECTURES
from tests.cli.conftest import Call, is_one_line


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_architectures_are_listed_with_sizes_and_options(call: Call) -> None:
    called = call("new")
    assert called.code == 0
    assert all(f" {name} " in called.out for name in ARCHITECTURES)
    for words in ("11.2 M", "--depth 18 --image 3x32x32 --classes 10", "--batch-norm", "GPT-2"):
        assert words in called.out


def test_model_is_written_and_described(call: Call, tmp_path: Path) -> None:
    called = call(
        "new", "mlp", "--features", 4, "--hidden", "8,6", "--classes", 3, "--save", "m.onnx"
    )
    assert called.code == 0
    for words in (
        "m.onnx: 115 parameters",
        "input x  float32 (batch, 4)",
        "output scores  float32 (batch, 3)",
        "next: onward inspect m.onnx",
    ):
        assert words in called.out
    assert call("inspect", "m.onnx").code == 0
    assert "hidden2.weight" in onward.load(tmp_path / "m.onnx").graph.initializers


def test_file_has_the_name_of_the_architecture_unless_given(call: Call, tmp_path: Path) -> None:
    assert call("new", "lstm", "--no-bidirectional", "--task", "tag", "--hidden", 4).code == 0
    model = onward.load(tmp_path / "lstm.onnx")
    shape = model.graph.initializers["lstm.0.R"].shape
    assert shape is not None and list(shape) == [1, 16, 4]


def test_seed_decides_the_file(call: Call, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        call("new", "mlp", "--seed", seed, "--save", f"{name}.onnx")
    a, b, c = ((tmp_path / f"{name}.onnx").read_bytes() for name in "abc")
    assert a == b != c


def test_existing_file_is_kept_unless_overwritten(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mlp.onnx").write_text("trained for a week")
    assert is_one_line(call("new", "mlp"), "mlp.onnx exists", "--overwrite")
    assert (tmp_path / "mlp.onnx").read_text() == "trained for a week"
    assert call("new", "mlp", "--overwrite").code == 0


@pytest.mark.parametrize("name", ["resnet", "gpt2"])
def test_help_of_an_architecture_shows_its_options(call: Call, name: str) -> None:
    shown = call("new", name, "--help").out
    options = {"resnet": ["--depth", "18|34|50|101", "3x32x32"], "gpt2": ["--context", "124 M"]}
    for words in (*options[name], "--seed", "--save"):
        assert words in shown


def test_misspelt_names_are_one_line_with_the_nearest(call: Call) -> None:
    assert is_one_line(call("new", "resnt"), "'resnt'", "mean 'resnet'")
    assert is_one_line(call("new", "resnet", "--dept", 18), "--dept", "--depth")


def test_invalid_values_are_one_line_with_the_valid_ones(call: Call, tmp_path: Path) -> None:
    assert is_one_line(call("new", "resnet", "--depth", 19), "one of 18, 34, 50, 101, not 19")
    assert is_one_line(call("new", "resnet", "--image", "3x32"), "3 sizes, such as 3x32x32")
    assert is_one_line(call("new", "mlp", "--hidden", "a,b"), "sizes, such as 128,128, not 'a,b'")
    assert is_one_line(call("new", "mlp", "--classes", "ten"), "whole number", "'ten'")
    assert is_one_line(call("new", "bert", "--size", "huge"), "one of tiny, small, base, large")
    assert is_one_line(call("new", "mlp", "--save", "no/m.onnx"), "there is no folder no")
    huge = call("new", "mlp", "--classes", 10**12)
    in_memory = "TiB do not fit into memory" in huge.err  # else the system has promised it
    assert is_one_line(huge, "smaller sizes" if in_memory else "Not enough free space")
    assert not list(tmp_path.glob("*.onnx"))
