"""The table of element types."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from onward.graph.dtypes import BY_NUMBER, ELEMENT_TYPES, FLOATS, HALVES, numpy_type, ort_type


@pytest.mark.parametrize("known", [dtype for dtype in ir.DataType if dtype], ids=lambda d: d.name)
def test_every_onnx_type_has_a_row_that_agrees_with_onnx_ir(known: ir.DataType) -> None:
    row = BY_NUMBER[known]
    assert row.onnx == known.name
    if known != ir.DataType.STRING:
        assert row.bits == known.bitwidth and row.dtype == known.numpy()


def test_spellings_are_unique() -> None:
    for field in ("number", "onnx", "numpy", "ort"):
        assert len({getattr(each, field) for each in ELEMENT_TYPES}) == len(ELEMENT_TYPES)


def test_sets_of_numbers_hold_members_of_onnx_ir() -> None:
    floats = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    assert floats == FLOATS
    assert ir.DataType.FLOAT16 in HALVES and ir.DataType.FLOAT not in HALVES


@pytest.mark.parametrize(
    "dtype, name",
    [
        (np.float32, "float"),
        (np.float64, "double"),
        (np.float16, "float16"),
        (np.bool_, "bool"),
        (np.str_, "string"),
        (object, "string"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.float8_e5m2, "float8e5m2"),
        (ml_dtypes.int4, "int4"),
    ],
)
def test_ort_type_is_spelled_as_onnxruntime_does(dtype: Any, name: str) -> None:
    assert ort_type(np.dtype(dtype)) == f"tensor({name})"


def test_numpy_type_is_the_inverse_of_ort_type() -> None:
    for dtype in (np.float32, np.float64, np.int8, np.bool_, ml_dtypes.bfloat16, np.complex64):
        assert numpy_type(ort_type(np.dtype(dtype))) == dtype
    assert numpy_type("seq(tensor(float))") is None


def test_the_table_needs_only_numpy() -> None:
    code = "import sys, onward.graph.dtypes; print('ml_dtypes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"
