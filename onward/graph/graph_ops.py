"""GraphOps: an OpBuilder that writes into a graph that is there already.

Beside `op.Mul(a, b)` it has the few questions that graphs of any shape ask again and again: the
sizes of a value, a number of its type, an output that its node did not give. A size is an int where
the shape is known and a value of shape (1,) where it is not; `op.shape` joins either into what
Reshape and Expand take, a constant wherever it can be one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.graph.shapes.node_inference import infer_outputs

Size = int | ir.Value


class GraphOps(OpBuilder):
    """Adds nodes at the end of an existing graph, under names of which nobody has one."""

    prefix = "added"

    def __init__(self, graph: ir.Graph, taken: set[str], opsets: Mapping[str, int]) -> None:
        super().__init__()
        self.graph, self._taken, self._opsets = graph, taken, opsets
        self._constants: dict[tuple[Any, ...], ir.Value] = {}
        self._sizes: dict[tuple[ir.Value, int], Size] = {}

    def opset(self, domain: str = "") -> int:
        return self._opsets.get(domain, 1)

    def name(self, wish: str) -> str:
        name = super().name(f"{self.prefix}/{wish}")
        while name in self._taken:
            name = super().name(f"{self.prefix}/{wish}")
        self._taken.add(name)
        return name

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant; equal ones are one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = super().constant(array)
        return self._constants[key]

    def inside(self, body: ir.Graph) -> GraphOps:
        """What writes into a body of a node of this graph; names stay apart from all others."""
        return GraphOps(body, self._taken, self._opsets)

    # -- sizes ---------------------------------------------------------------------------------

    def size(self, x: ir.Value, axis: int) -> Size:
        """How long x is along an axis: a number if it is known, else a value of shape (1,)."""
        if x.shape is None:
            return self.Shape(x, start=axis, **({} if axis == -1 else {"end": axis + 1}))
        axis = axis % rank(x)
        known = x.shape[axis]
        if isinstance(known, int):
            return known
        if (x, axis) not in self._sizes:
            self._sizes[x, axis] = self.Shape(x, start=axis, end=axis + 1)
        return self._sizes[x, axis]

    def sizes(self, x: ir.Value) -> list[Size]:
        """Every size of x, the first one first."""
        return [self.size(x, axis) for axis in range(rank(x))]

    def shape(self, *sizes: Size) -> ir.Value:
        """Sizes as one vector; -1 and 0 mean what Reshape says."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64))
        parts = [self.constant(np.array([s])) if isinstance(s, int) else s for s in sizes]
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def shape_of(self, x: ir.Value) -> ir.Value:
        """The shape of x: a constant where it is known."""
        if x.shape is not None and x.shape.is_static():
            return self.constant(np.array(x.shape.numpy(), np.int64))
        return self.Shape(x)

    def product(self, *sizes: Size) -> Size:
        """The product of sizes."""
        known = int(np.prod([size for size in sizes if isinstance(size, int)], dtype=np.int64))
        result: Size = known
        for size in sizes:
            if not isinstance(size, int):
                result = size if isinstance(result, int) and result == 1 else self.Mul(size, result)
        return result

    def number(self, size: Size, x: ir.Value) -> ir.Value | float:
        """A size as a number of x's type, to multiply or divide by."""
        if isinstance(size, int):
            return float(size)
        return self.Cast(self.Squeeze(size, [0]), to=int(x.dtype or 1))

    def arange(self, size: Size) -> ir.Value:
        """0, 1, ... below size."""
        if isinstance(size, int):
            return self.constant(np.arange(size, dtype=np.int64))
        return self.Range(0, self.Squeeze(size, [0]), 1)

    def reshape_as(self, value: ir.Value, x: ir.Value) -> ir.Value:
        """A value of as many elements in x's shape; one unknown size needs no Shape node."""
        dims = _dims(x)
        if dims is None or 0 in dims or sum(not isinstance(size, int) for size in dims) > 1:
            shaped = self.Reshape(value, self.shape_of(x), allowzero=1)
            shaped.shape = x.shape
            return shaped
        return self.Reshape(value, self.shape(*(n if isinstance(n, int) else -1 for n in dims)))

    # -- values --------------------------------------------------------------------------------

    def filled_like(self, x: ir.Value, number: float) -> ir.Value:
        """A tensor of x's type and shape that holds one number throughout."""
        value = self.number_like(number, x)
        if x.shape is not None and x.shape.is_static() and not x.shape.numpy():
            return value
        return self.Expand(value, self.shape_of(x))

    def number_like(self, number: float, x: ir.Value) -> ir.Value:
        """A scalar of x's type."""
        return self.constant(np.array(number, numpy_type(x)))

    def scratch(self, x: ir.Value) -> ir.Value:
        """A tensor of x's type and shape to write over: finite, and no other node's.

        For inputs that an engine overwrites; equal ones would become one, so none is equal.
        """
        return self.cast_like(self.Less(x, -float(self._count)), x)

    def plus(self, a: ir.Value | None, b: ir.Value | None) -> ir.Value | None:
        """a + b, where either may be absent."""
        if a is None or b is None:
            return b if a is None else a
        return self.Add(a, b)

    def sum_to(self, dy: ir.Value, x: ir.Value) -> ir.Value:
        """dy summed over what x was broadcast along: dx has x's shape."""
        dims, target = _dims(dy), _dims(x)
        if dims is None or target is None:
            return self._sum_to_unknown(dy, x)
        lead = len(dims) - len(target)
        axes, doubtful = list(range(lead)), False
        for axis, size in enumerate(target):
            other = dims[lead + axis]
            if size == other and size is not None:
                continue
            if size == 1:
                axes.append(lead + axis)
            elif isinstance(size, int) and size > 1:
                continue  # x cannot have been broadcast along it
            else:
                doubtful = True
        if doubtful:
            return self._sum_to_unknown(dy, x)
        if not axes:
            return dy
        if lead and len(axes) == lead:
            return self.ReduceSum(dy, axes, keepdims=0)
        summed = self.ReduceSum(dy, axes, keepdims=1)
        return self.Squeeze(summed, list(range(lead))) if lead else summed

    def _sum_to_unknown(self, dy: ir.Value, x: ir.Value) -> ir.Value:
        """The same where the shapes are known only when it runs: sum where x has 1 and dy has not.

        x's shape is padded with ones in front; Reshape takes the padding away again.
        """
        shape, full = self.Shape(x), self.Shape(dy)
        missing = self.Sub(self.Shape(full), self.Shape(shape))
        ones = self.Expand(np.int64(1), missing)
        padded = self.Concat(ones, shape, axis=0)
        axes = self.Squeeze(self.NonZero(self.Not(self.Equal(padded, full))), [0])
        summed = self.ReduceSum(dy, axes, keepdims=1, noop_with_empty_axes=1)
        return self.Reshape(summed, shape, allowzero=1)

    def cast_like(self, value: ir.Value, x: ir.Value) -> ir.Value:
        """A value in x's type."""
        if value.dtype == x.dtype:
            return value
        return self.Cast(value, to=int(x.dtype or 1))

    def typed(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        like: Sequence[ir.Value],
    ) -> list[ir.Value]:
        """A node whose outputs have the types of these values: for those that hold subgraphs."""
        node = ir.node(op_type, inputs, attributes, num_outputs=len(like))
        for output, value in zip(node.outputs, like):
            output.name, output.type, output.shape = self.name(op_type), value.type, value.shape
        self.graph.append(node)
        return list(node.outputs)

    def output(self, node: ir.Node, index: int) -> ir.Value:
        """An output of the forward node, which is asked for if it was left out."""
        while len(node.outputs) <= index:
            node.resize_outputs(len(node.outputs) + 1)
        value = node.outputs[index]
        if not value.name:
            value.name = self.name(node.op_type)
        schema = self._schema(node.op_type, node.domain)
        if value.type is None and schema is not None:
            known = [(each, each.type, each.shape) for each in node.outputs if each.type]
            infer_outputs(node, schema)
            for each, kind, shape in known:  # found with the whole graph in sight
                each.type, each.shape = kind, shape
        return value


def rank(x: ir.Value) -> int:
    """The number of axes, which a prepared graph must know."""
    if x.shape is None:
        raise ValueError(f"the rank of {x.name!r} is not known")
    return len(x.shape)


def numpy_type(x: ir.Value) -> np.dtype[Any]:
    assert x.dtype is not None
    return x.dtype.numpy()


def _dims(x: ir.Value) -> list[int | str | None] | None:
    """Sizes and names of dimensions; None for what has neither."""
    if x.shape is None:
        return None
    return [size if isinstance(size, int) else size.value for size in x.shape]


def axes_of(x: ir.Value, axes: Sequence[int]) -> list[int]:
    """Axes counted from the front."""
    return [axis % rank(x) for axis in axes]


def extend(model: ir.Model) -> GraphOps:
    """What writes at the end of this model."""
    return GraphOps(model.graph, taken_names(model), model.opset_imports)


def taken_names(model: ir.Model) -> set[str]:
    """Every name in the model, its subgraphs included."""
    return {
        str(value.name)
        for graph in model.graphs()
        for value in (
            *graph.inputs,
            *graph.initializers.values(),
            *(value for node in graph for value in node.outputs),
        )
    }
