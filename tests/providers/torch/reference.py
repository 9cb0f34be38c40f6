"""Run one operator through ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]


def reference_op(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    opset: int = 28,
) -> list[Any]:
    """One operator's outputs, as ONNX itself computes them."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"y{i}" for i in range(outputs)], **attributes or {})
    feeds = {name: value for name, value in zip(names, inputs) if value is not None}
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), None)
        for name, value in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], op_type, declared, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return list(ReferenceEvaluator(model).run(None, feeds))
