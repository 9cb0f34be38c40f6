"""Files that are written some bytes at a time: ONNX's own reader finds the same model."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph import files
from onward.graph.builder import OpBuilder
from onward.graph.files import load, save
from onward.graph.protos import to_proto


def model_of(size: int) -> ir.Model:
    """A model with weights of several types, one of them small."""
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", ("batch", size))
    w = op.initializer("w", np.random.default_rng(0).normal(size=(size, size)).astype(np.float32))
    y = op.Add(op.MatMul(x, w), op.initializer("b", np.arange(size, dtype=np.float32)))
    codes = ir.tensor(np.arange(size * 33).reshape(-1, 33).astype(ml_dtypes.int4), name="codes")
    value = ir.val(
        "codes", dtype=codes.dtype, shape=ir.Shape(codes.shape.numpy()), const_value=codes
    )
    codes.metadata_props["origin"] = "here"
    model = op.model(y=y)
    model.graph.register_initializer(value)
    return model


def test_the_file_holds_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(257)
    expected = to_proto(model)
    monkeypatch.setattr(files, "_COPIED_AT_MOST", 1000)
    save(model, tmp_path / "m.onnx")
    found = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(found)
    tensors = [sorted(each.graph.initializer, key=lambda t: t.name) for each in (found, expected)]
    assert tensors[0] == tensors[1]
    for proto in (found, expected):
        del proto.graph.initializer[:]
    assert found == expected
    assert to_proto(model) != found and len(load(tmp_path / "m.onnx").graph.initializers) == 3


def test_weights_are_not_copied_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = OpBuilder(opset=21)
    y = op.input("x", "float32", ("batch", 512))
    for place in range(16):
        y = op.MatMul(y, op.initializer(f"w{place}", np.full((512, 512), place, np.float32)))
    model = op.model(y=y)
    monkeypatch.setattr(files, "_COPIED_AT_MOST", 1000)
    tracemalloc.start()
    save(model, tmp_path / "m.onnx")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20 < (tmp_path / "m.onnx").stat().st_size


def test_text_is_not_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_COPIED_AT_MOST", 1000)
    save(model_of(64), tmp_path / "m.textproto")
    assert "initializer {" in (tmp_path / "m.textproto").read_text()


@pytest.mark.parametrize("limits", [(1 << 30, 1 << 26), (1 << 30, 1000), (1000, 1000)])
def test_the_bytes_of_a_file_are_known_before_it_is_written(
    limits: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_EMBEDDED_AT_MOST", limits[0])
    monkeypatch.setattr(files, "_COPIED_AT_MOST", limits[1])
    model = model_of(257)
    save(model, tmp_path / "m.onnx")
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    more = 2000 if limits[0] == 1000 else 0  # the places of weights in a second file
    assert written <= files.saved_bytes(model) <= written + more
