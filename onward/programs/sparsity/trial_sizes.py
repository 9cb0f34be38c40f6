"""TrialSizes: the sizes of all values of a model, and the contents of some, for one batch.

Symbolic sizes of an export are often unknown in between, or have several names. Here the inputs get
numbers: primes that divide no other size, so that a size that depends on them is recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.graph.shapes.infer import with_input_shapes
from onward.graph.shapes.value_dependent import infer_computed_shapes
from onward.passes.composites import inline_calls
from onward.passes.masks import MASK_OPERATORS
from onward.passes.value_facts import Array, dims, is_constant

_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
_MOST_NODES = 500  # of the computation of a mask


class TrialSizes:
    """Sizes of a model's values where the feed `rows` is of shape (batch, time).

    `parameters` name initializers that training changes: their contents are not used.
    """

    def __init__(self, model: ir.Model, rows: ir.Value, parameters: Collection[str]) -> None:
        self._graph, self._opset = model.graph, model.opset_imports.get("", 1)
        self._parameters = frozenset(parameters)
        numbers = _numbers(model, rows)
        shapes = {str(v.name): _shape(v, numbers) for v in model.graph.inputs}
        self.batch, self.time = shapes[str(rows.name)]
        self.feeds = shapes
        self._dynamic = tuple(numbers.values())
        trial = infer_computed_shapes(with_input_shapes(inline_calls(model.clone()), shapes))
        known = [v for node in trial.graph for v in node.outputs]
        known += [*trial.graph.inputs, *trial.graph.initializers.values()]
        self._sizes = {str(v.name): _static(v) for v in known}

    def sizes(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a value in the trial; None if it is not known."""
        return None if value is None else self._sizes.get(str(value.name))

    def are_constant(self, sizes: Collection[int]) -> bool:
        """Whether sizes depend neither on the batch nor on the sequence."""
        return not any(size % number == 0 for size in sizes for number in self._dynamic)

    def evaluate(
        self, value: ir.Value, feeds: Mapping[str, Array], *, others: int = 1
    ) -> Array | None:
        """The contents of a value for these feeds; None if it cannot be computed.

        Feeds that are not given hold the number `others`.
        """
        found = self._source(value)
        if found is None:
            return None
        nodes, constants, data = found
        given: dict[str, Any] = dict(constants)
        for each in data:
            assert each.dtype is not None
            filled = np.full(self.feeds[str(each.name)], others, each.dtype.numpy())
            fed = feeds.get(str(each.name))
            given[str(each.name)] = filled if fed is None else fed.astype(filled.dtype)
        if not nodes:
            return np.asarray(given[str(value.name)])
        inputs = [ir.val(name, dtype=ir.tensor(array).dtype) for name, array in given.items()]
        view = ir.GraphView(
            inputs=inputs,
            outputs=[value],
            nodes=nodes,
            opset_imports={"": self._opset},
            name="trial",
        )
        try:
            proto = ir.to_proto(ir.Model(view, ir_version=onnx.IR_VERSION))  # type: ignore[arg-type]
            with np.errstate(all="ignore"):
                (result,) = ReferenceEvaluator(proto).run(None, given)
        except Exception:  # an operator that the evaluator lacks, or sizes that do not fit
            return None
        return np.asarray(result)

    def _source(
        self, value: ir.Value
    ) -> tuple[list[ir.Node], dict[str, Array], list[ir.Value]] | None:
        """The nodes that compute a value, in order; their constants; the feeds that they read."""
        nodes: set[ir.Node] = set()
        constants: dict[str, Array] = {}
        data: dict[ir.Value, None] = {}
        waiting = [value]
        while waiting:
            each = waiting.pop()
            node = each.producer()
            if each.is_graph_input():
                if each.dtype is None or str(each.name) not in self.feeds:
                    return None
                data[each] = None
            elif is_constant(each):
                if each.name in self._parameters or each.const_value is None:
                    return None
                constants[str(each.name)] = np.asarray(each.const_value.numpy())
            elif node is None or node.graph is not self._graph:
                return None
            elif node.op_type == "Shape" and self.sizes(node.inputs[0]) is not None:
                constants[str(each.name)] = self._shape(node)
            elif node.domain or node.op_type not in MASK_OPERATORS or len(nodes) > _MOST_NODES:
                return None
            elif node not in nodes:
                nodes.add(node)
                waiting += [x for x in node.inputs if x is not None]
        return [node for node in self._graph if node in nodes], constants, list(data)

    def _shape(self, node: ir.Node) -> Array:
        """The result of a Shape node."""
        start, end = (node.attributes.get(name) for name in ("start", "end"))
        part = slice(None if start is None else start.value, None if end is None else end.value)
        return np.array(self.sizes(node.inputs[0]), np.int64)[part]


def _numbers(model: ir.Model, rows: ir.Value) -> dict[Any, int]:
    """A number for each symbolic size of `rows`: primes that divide no known size."""
    taken = {d for v in model.graph.initializers.values() for d in dims(v) or () if d}
    taken |= {d for v in model.graph.inputs for d in dims(v) or () if isinstance(d, int) and d}
    free = [p for p in _PRIMES if not any(isinstance(d, int) and d % p == 0 for d in taken)]
    symbols = [d for d in reversed(dims(rows) or ()) if not isinstance(d, int)]  # time: the least
    return dict(zip(symbols, free))


def _shape(value: ir.Value, numbers: Mapping[Any, int]) -> tuple[int, ...]:
    """An input's shape; unknown names are those of the batch, then of the sequence."""
    others = list(numbers.values())
    found = []
    for axis, size in enumerate(dims(value) or ()):
        if isinstance(size, int):
            found.append(size)
        elif size in numbers:
            found.append(numbers[size])
        else:
            found.append(others[0] if axis and others else (others[-1] if others else 1))
    return tuple(found)


def _static(value: ir.Value) -> tuple[int, ...] | None:
    sizes = dims(value)
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    return sizes  # type: ignore[return-value]
