"""ORT format: write it, and run models in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from onward.providers.ort.ort_format import write_ort_format
from tests.models import mlp, serialized


def test_model_in_ort_format_computes_the_same(tmp_path: Path) -> None:
    path, target = tmp_path / "model.onnx", tmp_path / "model.ort"
    path.write_bytes(serialized(mlp()))
    write_ort_format(path, target)
    assert target.read_bytes()[4:8] == b"ORTM"
    x = np.ones((2, 4), np.float32)
    first, second = (
        onnxruntime.InferenceSession(str(each), providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )[0]
        for each in (path, target)
    )
    np.testing.assert_array_equal(first, second)


def test_invalid_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(Exception, match="failed"):
        write_ort_format(path, tmp_path / "model.ort")
