"""Run one operator through stock onnxruntime, to compare with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from tests.providers.torch.one_node import Array, one_node_model, run_model


def ort_op(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    opset: int = 23,
    domain: str = "",
    constants: Iterable[int] = (),
) -> list[Any]:
    """One operator's outputs by stock onnxruntime; `constants` are inputs that must be constant."""
    model = one_node_model(op_type, inputs, attributes, outputs, opset, domain)
    fix(model, inputs, constants)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = {value.name for value in session.get_inputs()}
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if f"x{i}" in wanted}
    return list(session.run(None, feeds))


def fix(model: onnx.ModelProto, inputs: Sequence[Array | None], constants: Iterable[int]) -> None:
    """Turn these inputs of a one-node model into initializers; import opsets of onnxruntime."""
    model.ir_version = 10
    for imported in model.opset_import:
        imported.version = 1 if imported.domain else imported.version
    for index in constants:
        value = inputs[index]
        if value is not None:
            model.graph.initializer.append(numpy_helper.from_array(value, f"x{index}"))
    fixed = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in fixed]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def agrees_with_ort(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    *,
    opset: int = 23,
    domain: str = "",
    constants: Iterable[int] = (),
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Assert that torch's kernel and onnxruntime's give the same outputs."""
    constants = tuple(constants)
    expected = ort_op(op_type, inputs, attributes, outputs, opset, domain, constants)
    model = one_node_model(op_type, inputs, attributes, outputs, opset, domain)
    fix(model, inputs, constants)
    results = run_model(model, [x for i, x in enumerate(inputs) if i not in constants])
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        assert result.shape == wanted.shape
        np.testing.assert_allclose(
            result.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol
        )
