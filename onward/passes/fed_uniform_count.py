"""A model that computes how many random numbers another model needs for its feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.graph_ops import GraphOps, Size, extend, taken_names
from onward.graph.operators import SAME_COUNT, SHAPE_ONLY, is_random
from onward.graph.scopes import COMPOSITES, reads
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.random_functions import DROPOUT_MASK, UNIFORM
from onward.passes.rewrite import Names, substitute
from onward.passes.training_mode import disable_dropout, free_name
from onward.passes.value_facts import attribute, dims, made_by

Factor = int | tuple[str, int | None]  # a value's size along an axis, or all of its elements
Symbols = dict[str, tuple[str, int]]  # a dimension's name -> an input that has it, and where

_OPSET = 21  # of a model that only multiplies sizes
# Operators that make shapes of what they read: from which input on.
_SHAPED_BY = {
    **dict.fromkeys(("ConstantOfShape", "If", "Loop", "NonMaxSuppression", "NonZero"), 0),
    **dict.fromkeys(("Range", "Unique"), 0),
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "Compress", "DFT", "Expand", "OneHot"), 1),
    **dict.fromkeys(("Pad", "Reshape", "Resize", "Slice", "Split", "SplitToSequence"), 1),
    **dict.fromkeys(("Squeeze", "Tile", "TopK", "Unsqueeze", "SequenceAt", "SequenceErase"), 1),
    "MaxUnpool": 2,
}


@dataclass(frozen=True)
class UniformCount:
    """How many numbers a node needs: the product of the factors, or the next even number."""

    node: str
    factors: tuple[Factor, ...]
    even: bool = False


def values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    """The inputs and node outputs of a graph, by name."""
    made = (value for node in graph for value in node.outputs)
    return {str(value.name): value for value in (*made, *graph.inputs)}


def symbols_of(graph: ir.Graph) -> Symbols:
    """An input and axis for each named dimension of a graph's inputs."""
    found: Symbols = {}
    for value in graph.inputs:
        for axis, size in enumerate(dims(value) or ()):
            if isinstance(size, str):
                found.setdefault(size, (str(value.name), axis))
    return found


def count_uniforms(node: ir.Node, symbols: Symbols) -> UniformCount:
    """How many numbers a random node needs, in sizes of graph inputs where that is possible."""
    name = node.name or str(node.outputs[0].name)
    if not node.inputs:
        count: tuple[Factor, ...] = tuple(attribute(node, "shape"))
    elif node.op_type == "Multinomial":
        count = (_along(node.inputs[0], 0, symbols), attribute(node, "sample_size", 1))
    else:
        count = _elements(node.inputs[0], symbols)
    return UniformCount(name, count, even=node.op_type.startswith("RandomNormal"))


def _along(x: ir.Value | None, axis: int, symbols: Symbols) -> Factor:
    assert x is not None
    known = dims(x)
    size = known[axis] if known is not None else None
    if isinstance(size, int):
        return size
    return symbols[size] if size in symbols else (str(x.name), axis)


def _elements(x: ir.Value | None, symbols: Symbols) -> tuple[Factor, ...]:
    """The factors of a value's number of elements; a Reshape keeps the number of its input."""
    assert x is not None
    known = dims(x)
    if known is not None and all(isinstance(n, int) or n in symbols for n in known):
        return tuple(n if isinstance(n, int) else symbols[str(n)] for n in known)
    if known is not None and x.is_graph_input():
        return tuple(n if isinstance(n, int) else (str(x.name), i) for i, n in enumerate(known))
    maker = made_by(x, *SAME_COUNT)
    if maker is not None and maker.outputs[0] is x:
        return _elements(maker.inputs[0], symbols)
    return ((str(x.name), None),)


def product_of_factors(
    op: GraphOps, factors: Sequence[Factor], values: Mapping[str, ir.Value]
) -> Size:
    """The product of factors: a number, or a value that `op` makes."""
    sizes: list[Size] = []
    for factor in factors:
        if isinstance(factor, int):
            sizes.append(factor)
        elif factor[1] is None:
            sizes.append(op.Reshape(op.Size(values[factor[0]]), [1]))
        else:
            sizes.append(op.size(values[factor[0]], factor[1]))
    return op.product(*sizes)


def add_sizes(op: GraphOps, a: Size, b: Size) -> Size:
    """The sum of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    total: ir.Value = op.Add(*(op.shape(size) for size in (a, b)))
    return total


def size_model(model: ir.Model, needs: Sequence[UniformCount]) -> ir.Model:
    """A model whose output `noise_size` is the sum of all needs."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    asked = [factor for need in needs for factor in need.factors if not isinstance(factor, int)]
    if all(name in inputs for name, _ in asked):
        graph = ir.Graph((), (), nodes=(), opset_imports={"": _OPSET}, name="noise_size")
        for name in dict.fromkeys(name for name, _ in asked):
            graph.inputs.append(ir.val(name, type=inputs[name].type, shape=inputs[name].shape))
        small = ir.Model(graph, ir_version=10, producer_name="onward")
        values = values_by_name(graph)
    else:
        _refuse_drawn_shapes(model, needs)
        small = model.clone()
        values = _replace_random_by_zeros(small)
    op = extend(small)
    total: Size = 0
    for need in needs:
        count = product_of_factors(op, need.factors, values)
        total = add_sizes(op, total, _even(op, count) if need.even else count)
    return _with_single_output(small, op, total)


def _even(op: GraphOps, count: Size) -> Size:
    if isinstance(count, int):
        return count + count % 2
    even: ir.Value = op.Mul(op.Div(op.Add(count, 1), 2), 2)
    return even


def _with_single_output(small: ir.Model, op: GraphOps, total: Size) -> ir.Model:
    """The model with `total` as its only output, without unused nodes and inputs."""
    scalar = op.Identity(np.int64(total)) if isinstance(total, int) else op.Squeeze(total, [0])
    small.graph.outputs.clear()
    scalar.name = free_name("noise_size", taken_names(small))
    scalar.type, scalar.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(())
    small.graph.outputs.append(scalar)
    drop_unused(small)
    unused = [value for value in small.graph.inputs if not value.uses()]
    for value in unused:
        small.graph.inputs.remove(value)
    drop_unused(small)
    return lower_opset(small, STOCK_OPSET)


# -- shapes that must be computed ------------------------------------------------------------------


def _replace_random_by_zeros(copy: ir.Model) -> dict[str, ir.Value]:
    """Replace random tensors by zeros of the same shape; the values by their old names."""
    names, values = Names(copy), values_by_name(copy.graph)
    for node in [node for node in copy.graph if is_random(node)]:
        y = node.outputs[0]
        if node.op_type == "Dropout":
            assert node.inputs[0] is not None
            values[str(y.name)] = node.inputs[0]
            disable_dropout(node, copy.opset_imports[""], names)
            continue
        op = extend(copy)
        if not node.inputs:
            shape = op.shape(*attribute(node, "shape"))
        elif node.op_type == "Multinomial":
            samples = attribute(node, "sample_size", 1)
            shape = op.Concat(op.Shape(node.inputs[0], start=0, end=1), [samples], axis=0)
        else:
            shape = op.Shape(node.inputs[0])
        zeros = op.Cast(op.ConstantOfShape(shape), to=int(y.dtype or ir.DataType.FLOAT))
        values[str(y.name)] = zeros
        substitute(y, zeros, names)
        copy.graph.remove(node, safe=True)
    copy.graph.sort()
    return values


def _refuse_drawn_shapes(model: ir.Model, needs: Sequence[UniformCount]) -> None:
    """Refuse a node that needs a number of draws which depends on another node's draws."""
    drawn_shapes = {str(value.name) for value in _values_with_drawn_shapes(model.graph)}
    for need in needs:
        for factor in need.factors:
            if not isinstance(factor, int) and factor[0] in drawn_shapes:
                raise UnsupportedModel(
                    f"how many random numbers {need.node!r} needs depends on random numbers "
                    f"itself: the shape of {factor[0]!r} is drawn\n"
                    "make the shape depend only on the model's inputs"
                )


def _values_with_drawn_shapes(graph: ir.Graph) -> set[ir.Value]:
    """Values whose shapes depend on random numbers."""
    drawn: set[ir.Value] = set()  # values whose contents depend on random numbers
    shaped: set[ir.Value] = set()
    for node in graph:
        read = reads(node)
        if any(value in shaped for value in read) or _is_shaped_by(node, drawn):
            drawn.update(node.outputs)
            if node.op_type not in SHAPE_ONLY:
                shaped.update(node.outputs)
        elif node.op_type not in SHAPE_ONLY and (
            is_random(node) or any(value in drawn for value in read)
        ):
            drawn.update(node.outputs)
    return shaped


def _is_shaped_by(node: ir.Node, drawn: set[ir.Value]) -> bool:
    """Whether a node's output shape depends on the contents of these values."""
    if node.domain == COMPOSITES:  # of our functions, only those that draw get a shape
        return node.op_type in (UNIFORM, DROPOUT_MASK) and node.inputs[1] in drawn
    if node.domain != "" or node.op_type in ("If", "Loop"):
        return any(value in drawn for value in reads(node))
    first = 1 if node.op_type.startswith("Reduce") else _SHAPED_BY.get(node.op_type)
    return first is not None and any(value in drawn for value in node.inputs[first:])
