"""ONNX's own node tests: 1,884 small models with inputs and expected outputs."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

GAPS = Path(__file__).parent / "gaps"


@functools.cache
def load() -> dict[str, TestCase]:
    """Every node test by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX's own generators warn
        return {case.name: case for case in load_model_tests(kind="node")}


def gaps(provider: str) -> dict[str, str]:
    """The tests that a provider is known to fail, each with its reason."""
    path = GAPS / f"{provider}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    pairs = (line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)  # type: ignore[arg-type]


def read(proto: Any) -> Any:
    """A test's value as numpy, a list of such, or None."""
    if isinstance(proto, onnx.TensorProto):
        return numpy_helper.to_array(proto)
    if isinstance(proto, onnx.SequenceProto):
        return numpy_helper.to_list(proto)
    if isinstance(proto, onnx.OptionalProto):
        return numpy_helper.to_optional(proto)
    return proto


def check(got: Any, wanted: Any, case: TestCase) -> None:
    """Assert that a result is what ONNX expects, within the test's own tolerance."""
    if wanted is None:
        assert got is None
        return
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            check(one, other, case)
        return
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "OUS":
        np.testing.assert_array_equal(got.astype(str), wanted.astype(str))
        return
    assert got.dtype == wanted.dtype
    if wanted.dtype.kind != "c":
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-6))
