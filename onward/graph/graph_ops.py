"""TensorOps, GraphOps: builders that add nodes, with methods for sizes, numbers and types.

In addition to `op.Mul(a, b)` it has methods for sizes of a value, numbers of a value's type and
optional outputs of a node. A size is an int where the shape is known, else a value of shape (1,);
`op.shape` makes one vector of sizes for Reshape and Expand, a constant if all of them are known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import onnx_ir as ir

from onward.graph.builder import NodeBuilder
from onward.graph.shapes.node_inference import infer_outputs

Size = int | ir.Value


class TensorOps(NodeBuilder):
    """Adds nodes at the end of an existing graph, with methods for sizes and tensors."""

    def __init__(self, graph: ir.Graph, taken: set[str], opsets: Mapping[str, int]) -> None:
        super().__init__(graph, taken, opsets)
        self._constants: dict[tuple[Any, ...], ir.Value] = {}
        self._sizes: dict[tuple[ir.Value, int], Size] = {}

    @abstractmethod
    def inside(self, body: ir.Graph) -> TensorOps:
        """A builder for a subgraph of a node of this graph; their names never clash."""

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """An initializer with a generated name; equal constants share one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(self.name("constant"), array)
        return self._constants[key]

    # -- sizes ---------------------------------------------------------------------------------

    def size(self, x: ir.Value, axis: int) -> Size:
        """The size of x along an axis: an int if it is known, else a value of shape (1,)."""
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
        """The sizes of x along all of its axes."""
        return [self.size(x, axis) for axis in range(rank(x))]

    def shape(self, *sizes: Size) -> ir.Value:
        """Sizes as one vector; -1 and 0 mean what they mean to Reshape."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(np.array(sizes, np.int64))
        parts = [self.constant(np.array([s])) if isinstance(s, int) else s for s in sizes]
        return parts[0] if len(parts) == 1 else self.Concat(*parts, axis=0)

    def shape_of(self, x: ir.Value) -> ir.Value:
        """The shape of x: a constant if it is known."""
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
        """[0, 1, ..., size - 1]"""
        if isinstance(size, int):
            return self.constant(np.arange(size, dtype=np.int64))
        return self.Range(0, self.Squeeze(size, [0]), 1)

    def reshape_as(self, value: ir.Value, x: ir.Value) -> ir.Value:
        """A value reshaped to x's shape; without a Shape node if at most one size is unknown."""
        dims = _dims(x)
        if dims is None or 0 in dims or sum(not isinstance(size, int) for size in dims) > 1:
            shaped = self.Reshape(value, self.shape_of(x), allowzero=1)
            shaped.shape = x.shape
            return shaped
        return self.Reshape(value, self.shape(*(n if isinstance(n, int) else -1 for n in dims)))

    # -- values --------------------------------------------------------------------------------

    def filled_like(self, x: ir.Value, number: float) -> ir.Value:
        """A tensor of x's type and shape, filled with one number."""
        value = self.number_like(number, x)
        if x.shape is not None and x.shape.is_static() and not x.shape.numpy():
            return value
        return self.Expand(value, self.shape_of(x))

    def number_like(self, number: float, x: ir.Value) -> ir.Value:
        """A scalar of x's type."""
        return self.constant(np.array(number, numpy_type(x)))

    def scratch(self, x: ir.Value) -> ir.Value:
        """A tensor of x's type and shape for an engine to overwrite: finite, with no other reader.

        Each one differs from the others: common subexpressions would otherwise be shared.
        """
        return self.cast_like(self.Less(x, -float(self._count)), x)

    def plus(self, a: ir.Value | None, b: ir.Value | None) -> ir.Value | None:
        """a + b; either may be None."""
        if a is None or b is None:
            return b if a is None else a
        return self.Add(a, b)

    def sum_to(self, dy: ir.Value, x: ir.Value) -> ir.Value:
        """dy summed over the axes along which x was broadcast: the result has x's shape."""
        dims, target = _dims(dy), _dims(x)
        if dims is None or target is None:
            return self._sum_to_unknown(dy, x)
        lead = len(dims) - len(target)
        axes, unknown = list(range(lead)), False
        for axis, size in enumerate(target):
            other = dims[lead + axis]
            if size == other and size is not None:
                continue
            if size == 1:
                axes.append(lead + axis)
            elif isinstance(size, int) and size > 1:
                continue  # x was not broadcast along this axis
            else:
                unknown = True
        if unknown:
            return self._sum_to_unknown(dy, x)
        if not axes:
            return dy
        if lead and len(axes) == lead:
            return self.ReduceSum(dy, axes, keepdims=0)
        summed = self.ReduceSum(dy, axes, keepdims=1)
        return self.Squeeze(summed, list(range(lead))) if lead else summed

    def _sum_to_unknown(self, dy: ir.Value, x: ir.Value) -> ir.Value:
        """sum_to for shapes known only at run time: sums where x has size 1 and dy has not.

        x's shape is padded with leading ones; the final Reshape removes them.
        """
        shape, full = self.Shape(x), self.Shape(dy)
        missing = self.Sub(self.Shape(full), self.Shape(shape))
        ones = self.Expand(np.int64(1), missing)
        padded = self.Concat(ones, shape, axis=0)
        axes = self.Squeeze(self.NonZero(self.Not(self.Equal(padded, full))), [0])
        summed = self.ReduceSum(dy, axes, keepdims=1, noop_with_empty_axes=1)
        return self.Reshape(summed, shape, allowzero=1)

    def cast_like(self, value: ir.Value, x: ir.Value) -> ir.Value:
        """A value cast to x's type."""
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
        """A node whose outputs have the types of the values `like`: for nodes with subgraphs."""
        node = ir.node(op_type, inputs, attributes, num_outputs=len(like))
        for output, value in zip(node.outputs, like):
            output.name, output.type, output.shape = self.name(op_type), value.type, value.shape
        self.graph.append(node)
        return list(node.outputs)

    def output(self, node: ir.Node, index: int) -> ir.Value:
        """An output of a node, added to the node if it was left out."""
        while len(node.outputs) <= index:
            node.resize_outputs(len(node.outputs) + 1)
        value = node.outputs[index]
        if not value.name:
            value.name = self.name(node.op_type)
        schema = self._schema(node.op_type, node.domain)
        if value.type is None and schema is not None:
            known = [(each, each.type, each.shape) for each in node.outputs if each.type]
            infer_outputs(node, schema)
            for each, kind, shape in known:  # inferred from the whole graph, so better
                each.type, each.shape = kind, shape
        return value


@final
class GraphOps(TensorOps):
    """Adds nodes at the end of an existing graph: for losses, optimizers and passes."""

    prefix = "added"

    def inside(self, body: ir.Graph) -> GraphOps:
        return GraphOps(body, self._taken, self._opsets)


def rank(x: ir.Value) -> int:
    """The number of axes of x; it must be known, as in a prepared graph."""
    if x.shape is None:
        raise ValueError(f"the rank of {x.name!r} is not known")
    return len(x.shape)


def numpy_type(x: ir.Value) -> np.dtype[Any]:
    assert x.dtype is not None
    return x.dtype.numpy()


def _dims(x: ir.Value) -> list[int | str | None] | None:
    """The size or name of each dimension (None: neither); None if the rank is unknown."""
    if x.shape is None:
        return None
    return [size if isinstance(size, int) else size.value for size in x.shape]


def axes_of(x: ir.Value, axes: Sequence[int]) -> list[int]:
    """Axes as non-negative numbers."""
    return [axis % rank(x) for axis in axes]


def extend(model: ir.Model) -> GraphOps:
    """A builder that adds nodes at the end of this model."""
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
