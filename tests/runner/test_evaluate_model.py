"""evaluate_model: numbers of a model file on data; and the rows that a run held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import onward
from onward.errors import ColumnMissing, DataError
from onward.runner.data.dataset import SelectedRows
from onward.runner.data.in_memory import ArrayDataset
from onward.runner.evaluate_model import evaluate_model


def test_numbers_are_those_of_all_rows(tmp_path: Path) -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 2))
    onward.save(
        op.model(y=op.MatMul(x, op.initializer("w", np.ones((2, 1), np.float32)))), tmp_path / "m"
    )
    rows = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    data = {"x": rows, "target": rows.sum(1) + np.linspace(0, 1, 40, dtype=np.float32)}
    found = evaluate_model(tmp_path / "m", data, standardize=False, epochs=9, batch_size="auto")
    assert found.numbers["val_loss"] == pytest.approx(np.mean(np.linspace(0, 1, 40) ** 2), rel=1e-5)
    assert found.monitor in found.numbers
    assert not (tmp_path / "checkpoints").exists()


def test_weights_of_rows_are_no_input_and_may_be_missing(tmp_path: Path) -> None:
    onward.save(onward.new_model("mlp", features=2, hidden=(3,), classes=2), tmp_path / "m.onnx")
    x = np.random.default_rng(0).normal(size=(20, 2))
    data = {"a": x[:, 0], "b": x[:, 1], "label": np.arange(20) % 2}
    with_weights = {"w": np.arange(20), **data}
    settings = {"target": "label", "row_weights": "w"}
    found = evaluate_model(tmp_path / "m.onnx", with_weights, **settings)
    assert found == evaluate_model(tmp_path / "m.onnx", data, **settings)
    with pytest.raises(ColumnMissing, match="'label'"):
        evaluate_model(tmp_path / "m.onnx", {"a": x[:, 0], "b": x[:, 1]}, **settings)


def test_selected_rows_are_read_by_their_own_positions() -> None:
    rows = SelectedRows(ArrayDataset({"x": np.arange(10) * 2}), np.array([7, 1, 3]))
    assert len(rows) == 3 and rows.read(np.array([2, 0]))["x"].tolist() == [6, 14]
    with pytest.raises(DataError, match="has no row 3"):
        rows.read(np.array([3]))
