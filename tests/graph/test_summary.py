"""Counting a model's parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import onward
from onward.graph.summary import Amount, file_bytes, summarize
from tests.models import mlp


def test_nodes_operators_and_weights_are_counted() -> None:
    summary = summarize(mlp())
    assert summary.nodes == 3 and summary.operators == {"MatMul": 1, "Add": 1, "Relu": 1}
    assert summary.weights == Amount(2, 9, 36) == summary.weights_by_type["float"]
    assert summary.opsets == {"ai.onnx": 23} and summary.ir_version == 10
    assert summary.largest[0].name == "w"


def test_constants_in_nodes_are_weights_too() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {1, 2}>() y = Add(x, c) }""")
    summary = summarize(onward.load(model))
    assert summary.weights == Amount(1, 2, 8)


def test_external_files_are_counted_and_not_read(tmp_path: Path) -> None:
    onward.save(mlp(), tmp_path / "m.onnx")
    path = tmp_path / "e.onnx"
    proto = onnx.load(tmp_path / "m.onnx")
    onnx.save(proto, path, save_as_external_data=True, location="e.data", size_threshold=0)
    summary = summarize(onward.load(path))
    assert summary.external_files == {"e.data": 36}
    assert file_bytes(path, summary) == path.stat().st_size + (tmp_path / "e.data").stat().st_size
    assert summary.largest[0].file == "e.data"


def test_types_are_sorted_by_bytes() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (4,))
    weight = op.initializer("w", np.zeros(4, np.float32))
    index = op.initializer("i", np.zeros(1, np.int64))
    model = op.model(y=op.Gather(op.Add(x, weight), index))
    assert list(summarize(model).weights_by_type) == ["float", "int64"]
