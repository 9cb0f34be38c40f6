"""onward early-exit: its report, its file, and bad options in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import onward
from onward.compress.early_exits import exit_report
from onward.graph.builder import OpBuilder
from tests.cli.conftest import Call, is_one_line


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """A deep model whose answer is known early, and rows in rows.npz."""
    op = OpBuilder()
    x = op.input("x", "float32", ("batch", 6))
    for layer in range(4):
        x = op.MatMul(x, np.eye(6, dtype=np.float32))
        x.name = f"layer_{layer}"
    pick = np.zeros((6, 2), np.float32)
    pick[0] = [9, -9]
    onward.save(op.model(y=op.MatMul(x, pick)), tmp_path / "deep.onnx")
    rows = np.random.default_rng(0).standard_normal((120, 6)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows)
    return tmp_path / "deep.onnx"


@pytest.mark.integration
def test_a_model_with_exits_is_saved(call: Call, deep: Path) -> None:
    rows, made = deep.parent / "rows.npz", deep.parent / "exits.onnx"
    options = ("--at", "layer_0", "--data", rows, "--drop", "5%", "--steps", "60")
    called = call("early-exit", deep, *options, "--save", made, "--force", "--json")
    assert called.code == 0, called.err
    report = json.loads(called.out)
    assert report["exits"][0]["at"] == "layer_0" and report["lost"] <= 0.05
    assert "saved" in called.err
    ran = call("run", made, "--random", "--size", "batch=3")
    assert ran.code == 0 and "exit" in ran.out


def test_model_that_is_not_faster_is_saved_only_by_force(
    call: Call, deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_report, "time_in_turns", lambda *_, **__: {"before": 1.0, "after": 2})
    rows, made = deep.parent / "rows.npz", deep.parent / "exits.onnx"
    options = ("--at", "layer_0", "--data", rows, "--steps", "10", "--save", made)
    refused = call("early-exit", deep, *options)
    assert refused.code == 1 and not made.exists()
    assert "was not written; --force saves the best one found" in refused.out
    forced = call("early-exit", deep, *options, "--force")
    assert forced.code == 0 and made.exists()
    assert "although it does not meet what was asked for" in forced.out


def test_bad_options_are_one_line(call: Call, deep: Path) -> None:
    rows = deep.parent / "rows.npz"
    data = ("--data", rows)
    assert is_one_line(call("early-exit", deep, "--at", "lyer_0", *data), "no inner value 'lyer_0'")
    assert is_one_line(call("early-exit", deep, "--at", "layer_0", *data, "--drop", "x"), "'x'")
    same = call("early-exit", deep, "--at", "layer_0", *data, "--save", deep)
    assert is_one_line(same, "is the model itself")
    missing = call("early-exit", deep, "--at", "layer_0", "--data", deep.parent / "no.npz")
    assert is_one_line(missing, "no.npz")
