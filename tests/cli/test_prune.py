"""onward prune: its report, its files, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress.pruning import prune as pruning
from onward.compress.pruning import pruning_report, speed
from onward.compress.report import Measured, Report
from tests.cli.conftest import Call, is_one_line
from tests.compress.pruning.law import Net


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x (batch, 8) -> y (batch, 4), with 32 units in between."""
    op = Net()
    x = op.input("x", "float32", ("batch", 8))
    y = op.MatMul(op.Relu(op.MatMul(x, op.weight(8, 32))), op.weight(32, 4))
    onward.save(op.finish(y), tmp_path / "m.onnx")
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 8), np.float32))
    return tmp_path / "m.onnx"


@pytest.fixture(autouse=True)
def no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_turns(models: dict[str, Any], feeds: Any, **options: Any) -> dict[str, float]:
        return {name: 2.0 if name == "before" else 1.0 for name in models}

    monkeypatch.setattr(pruning_report, "time_in_turns", take_turns)
    monkeypatch.setattr(speed, "time_in_turns", take_turns)


def test_pruned_model_and_page_are_written(call: Call, model: Path, tmp_path: Path) -> None:
    small, page = tmp_path / "small.onnx", tmp_path / "report.html"
    done = call(
        *("prune", model, "--keep", "0.5", "--data", tmp_path / "rows.npz"),
        *("--save", small, "--page", page),
    )
    assert done.code == 0 and "2.00 times as fast" in done.out and f"saved {small}" in done.out
    assert "16 of 32 units" in page.read_text("utf-8")
    sizes = {tuple(v.shape or ()) for v in onward.load(small).graph.initializers.values()}
    assert sizes == {(8, 16), (16, 4)}


def test_json_has_each_change(call: Call, model: Path) -> None:
    printed = json.loads(call("prune", model, "--json").out)
    assert printed["task"] == "prune" and printed["helped"]
    assert printed["changes"][0]["format"] == "16 of 32 units"


def test_goal_that_is_not_met_writes_nothing_without_force(
    call: Call, model: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.onnx"
    done = call("prune", model, "--speedup", "3", "--save", small)
    assert done.code == 1 and "3 times as fast was not reached" in done.out
    assert "was not written" in done.out and not small.exists()
    forced = call("prune", model, "--speedup", "3", "--save", small, "--force")
    assert forced.code == 0 and "although it does not meet what was asked for" in forced.out
    assert "3 times as fast was not reached" in forced.out
    assert small.stat().st_size < model.stat().st_size
    assert call("prune", model, "--speedup", "3", "--force").code == 1  # nothing is saved


def test_model_that_was_not_changed_is_not_saved_by_force(
    call: Call, model: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small.onnx"
    done = call("prune", model, "--keep", "1", "--save", small, "--force")
    assert done.code == 1 and "no other model than the original was found" in done.out
    assert not small.exists()


def test_bad_input_is_one_line(call: Call, model: Path) -> None:
    assert is_one_line(call("prune", model, "--keep", "1.5"), "keep", "at most 1")
    assert is_one_line(call("prune", model, "--only", "heads"), "nothing to prune")
    assert is_one_line(call("prune", model, "--save", model), "is the model itself")
    assert is_one_line(call("prune", "absent.onnx"), "absent.onnx")


def test_ctrl_c_in_tuning_says_how_to_continue(
    call: Call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any, folder: Path, **options: Any) -> ir.Model:
        folder.mkdir()
        (folder / "student.safetensors").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(pruning, "match_teacher", interrupt)
    small = tmp_path / "small.onnx"
    done = call("prune", model, "--tune", "5min", "--save", small)
    assert done.code == 130 and "the same command continues" in done.err and not small.exists()


def test_options_are_passed_on(call: Call, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def record(source: Path, data: Any, **options: Any) -> Report:
        asked.append(options)
        return Report(
            task="prune",
            model=onward.load(source),
            helped=True,
            before=Measured(),
            after=Measured(),
        )

    monkeypatch.setattr(pruning, "prune", record)
    call("prune", model, "--macs", "1M", "--protect", "heads", "--protect", "a*", "--layers", "2")
    assert asked[0]["macs"] == "1M" and asked[0]["layers"] == 2
    assert asked[0]["protect"] == ["heads", "a*"] and asked[0]["folder"] is None
