"""Run a model as onnxruntime or ONNX's reference evaluator does, and compare results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from onward.passes.downgrade import lower_opset

NEWEST_IN_ORT = 26
Feeds = Mapping[str, Any]


def run_ort(model: onnx.ModelProto | ir.Model, feeds: Feeds) -> list[Any]:
    """The outputs of stock onnxruntime without its optimisations."""
    if isinstance(model, ir.Model):
        model = ir.to_proto(lower_opset(model.clone(), NEWEST_IN_ORT))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    results: list[Any] = session.run(None, dict(feeds))
    return results


def run_reference(model: onnx.ModelProto | ir.Model, feeds: Feeds) -> list[Any]:
    """The results of ONNX's reference evaluator."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    results: list[Any] = ReferenceEvaluator(proto).run(None, dict(feeds))
    return results


def assert_same(wanted: Sequence[Any], given: Sequence[Any], rtol: float = 1e-4) -> None:
    """Results agree: number, type, shape and, but for rounding, values."""
    assert len(wanted) == len(given)
    for want, got in zip(wanted, given, strict=True):
        if isinstance(want, list):
            assert_same(want, got, rtol)
            continue
        want, got = np.asarray(want), np.asarray(got)
        assert want.shape == got.shape
        if want.dtype.kind in "OSU":
            assert want.astype(str).tolist() == got.astype(str).tolist()
            continue
        assert want.dtype == got.dtype
        if want.dtype.kind == "b":
            assert (want == got).all()
        else:
            exact = np.complex128 if want.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(
                got.astype(exact), want.astype(exact), rtol=rtol, atol=rtol, equal_nan=True
            )
