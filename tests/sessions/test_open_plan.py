"""What is said of a model where it is opened."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from onward.graph.protos import to_proto
from onward.providers.ort import exact_products


@pytest.mark.parametrize(
    ("largest", "exact", "warnings"), [(127, 64, 1), (127, 127, 0), (64, 64, 0)]
)
def test_weights_that_this_processor_cuts_off_are_a_warning(
    largest: int,
    exact: int,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(exact_products, "largest_weight", lambda: exact)
    op = onward.OpBuilder()
    x = op.input("x", "uint8", (3, 32))
    w = op.initializer("w", np.full((32, 16), largest, np.int8))
    data = to_proto(op.model(y=op.MatMulInteger(x, w))).SerializeToString()
    with caplog.at_level(logging.WARNING, "onward"):
        onward.InferenceSession(data)
    assert len(caplog.messages) == warnings
    assert all("without VNNI, cuts off sums" in message for message in caplog.messages)
    assert all("\n" not in message for message in caplog.messages)


@pytest.mark.parametrize(("largest", "warnings"), [(127, 1), (64, 0)])
def test_weights_in_another_file_are_a_warning_too(
    largest: int,
    warnings: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(exact_products, "largest_weight", lambda: 64)
    op = onward.OpBuilder()
    x = op.input("x", "uint8", (3, 32))
    before = op.initializer("before", np.full((3, 16), 99, np.int32))
    w = op.initializer("w", np.full((32, 16), largest, np.int8))
    y = op.Add(op.MatMulInteger(x, w), before)
    path = tmp_path / "model.onnx"
    onnx.save_model(to_proto(op.model(y=y)), path, save_as_external_data=True, size_threshold=0)
    with caplog.at_level(logging.WARNING, "onward"):
        onward.InferenceSession(path)
    assert sum("without VNNI, cuts off sums" in message for message in caplog.messages) == warnings
