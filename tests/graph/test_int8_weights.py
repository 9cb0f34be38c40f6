"""A model's metadata says for which processors its 8-bit weights are."""

from __future__ import annotations

from pathlib import Path

import pytest

import onward
from onward.graph.int8_weights import ALL, ALL_BUT_OLD, mark_processors, marked_processors


@pytest.mark.parametrize("largest, processors", [(64, ALL), (65, ALL_BUT_OLD), (127, ALL_BUT_OLD)])
def test_a_file_says_which_processors_it_is_for(
    largest: int, processors: str, tmp_path: Path
) -> None:
    op = onward.OpBuilder()
    model = op.model(y=op.Relu(op.input("x", "float32", (2,))))
    assert marked_processors(model) is None
    mark_processors(model, largest)
    onward.save(model, tmp_path / "model.onnx")
    assert marked_processors(onward.load(tmp_path / "model.onnx")) == processors
