"""Run one operator through ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx.reference import ReferenceEvaluator

from tests.providers.torch.one_node import Array, one_node_model


def reference_op(
    op_type: str,
    inputs: Sequence[Array | None],
    attributes: dict[str, Any] | None = None,
    outputs: int = 1,
    opset: int = 28,
) -> list[Any]:
    """One operator's outputs, computed by the reference evaluator."""
    model = one_node_model(op_type, inputs, attributes, outputs, opset)
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    return list(ReferenceEvaluator(model).run(None, feeds))
