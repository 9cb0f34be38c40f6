"""GradientOps: the builder with which gradient rules add nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import onnx_ir as ir

from onward.graph.graph_ops import Size as Size
from onward.graph.graph_ops import TensorOps
from onward.graph.graph_ops import axes_of as axes_of
from onward.graph.graph_ops import numpy_type as numpy_type
from onward.graph.graph_ops import rank as rank
from onward.graph.operator_table import AbstractOpTable
from onward.passes.composites import Functions


@final
class GradientOps(TensorOps):
    """Adds the nodes of gradients at the end of an existing graph."""

    prefix = "gradient"

    def __init__(
        self,
        graph: ir.Graph,
        taken: set[str],
        opsets: Mapping[str, int],
        rules: AbstractOpTable,
        functions: Functions | None = None,
        *,
        outlines: bool = False,
    ) -> None:
        super().__init__(graph, taken, opsets)
        self.rules = rules
        self.active: set[ir.Value] = set()  # values whose gradients are needed
        self.functions = functions  # of the model; None: functions are not allowed
        self.outlines = outlines  # whether composites become function calls

    @property
    def opsets(self) -> Mapping[str, int]:
        """The version of each domain in which nodes are written."""
        return self._opsets

    @contextmanager
    def separate_sizes(self) -> Iterator[None]:
        """Forget afterwards which nodes compute sizes: this block's nodes move to a function."""
        known = dict(self._sizes)
        try:
            yield
        finally:
            self._sizes = known

    def zeros_like(self, x: ir.Value) -> ir.Value:
        if isinstance(x.type, ir.SequenceType):
            return self.map_sequence(lambda op, each: op.filled_like(each, 0.0), x)
        return self.filled_like(x, 0.0)

    def total(self, terms: Sequence[ir.Value]) -> ir.Value:
        """The sum of the gradients of one value; sequences are added element by element."""
        if isinstance(terms[0].type, ir.SequenceType):
            result = terms[0]
            for term in terms[1:]:
                result = self.map_sequence(lambda op, a, b: op.Add(a, b), result, term)
            return result
        if len(terms) == 1:
            return terms[0]
        return self.Add(*terms) if len(terms) == 2 else self.Sum(*terms)

    def map_sequence(
        self,
        write: Callable[..., ir.Value],
        *inputs: ir.Value,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """The sequence of `write(op, element, ...)`; inputs that are tensors are passed whole."""
        body = ir.Graph((), (), nodes=(), name="body")
        inner = self.inside(body)
        for value in inputs:
            kind = value.type.elem_type if isinstance(value.type, ir.SequenceType) else value.type
            shape = None if isinstance(value.type, ir.SequenceType) else value.shape
            body.inputs.append(ir.val(self.name("each"), type=kind, shape=shape))
        body.outputs.append(write(inner, *body.inputs))
        (result,) = self.typed("SequenceMap", inputs, {"body": body}, [like or inputs[0]])
        return result

    def inside(self, body: ir.Graph) -> GradientOps:
        return GradientOps(
            body, self._taken, self._opsets, self.rules, self.functions, outlines=self.outlines
        )
