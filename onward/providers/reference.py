"""ReferenceExecutionProvider: ONNX's own reference evaluator, slow and right."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.errors import ProviderError


class ReferenceProvider:
    """Runs a graph by ONNX's definitions, in numpy."""

    name = "ReferenceExecutionProvider"

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whatever ONNX defines: the evaluator has its operator, or its function's body."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        return onnx.defs.has(
            node.op_type, max_inclusive_version=opsets.get(domain, 1), domain=domain
        )

    def compile(self, model: ir.Model) -> ReferenceExecutable:
        loaded = ir.external_data.load_to_model(model)
        return ReferenceExecutable(ReferenceEvaluator(ir.to_proto(loaded)))


class ReferenceExecutable:
    """A part that runs in ONNX's reference evaluator."""

    takes_numpy = True

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator = evaluator

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]:
        feeds = dict(zip(self._evaluator.input_names, tensors, strict=True))
        try:
            results = self._evaluator.run(None, feeds)
        except Exception as error:
            raise ProviderError(f"ONNX's reference evaluator failed: {error}") from error
        return copy.deepcopy(list(results))  # never a feed's or a weight's own memory

    def to_numpy(self, tensor: Any, dtype: np.dtype[Any] | None) -> Any:
        return tensor
