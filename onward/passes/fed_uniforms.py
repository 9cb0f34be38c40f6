"""Feed a model its uniform random numbers as one vector, for engines that draw them slowly.

    draws = draw_uniforms(model)
    size = feed_uniforms(model, draws)      # the model has a new input, its last: `noise`
    (n,) = session_of(size).run(None, ...)  # how many numbers these feeds need
    feeds["noise"] = generator.random(n, np.float32)

Every call that draws reads a slice of the vector instead, in order: the same numbers give the same
results, on any engine. `take_noise` runs both passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps, Size, extend, taken_names
from onward.graph.scopes import graphs_of
from onward.passes.fed_uniform_count import (
    UniformCount,
    add_sizes,
    product_of_factors,
    values_by_name,
)
from onward.passes.random_draws import (
    Draws,
    draw_uniforms,
    half_rounded_up,
    left_random,
    replace_node,
)
from onward.passes.random_functions import (
    DOMAIN,
    DROPOUT_MASK,
    FUNCTIONS,
    MASKED_SCALE,
    RANDOM_KEY,
    UNIFORM,
    calls,
)
from onward.passes.rewrite import Names, remove_node
from onward.passes.value_facts import attribute, dims, ints, static

__all__ = ["feed_uniforms", "left_random", "take_noise"]

_SHAPES = ("Concat", "Shape")  # what `draw_uniforms` makes shapes with
_FINEST = 2.0**-24  # the step between the uniform numbers that generators draw in float32


def take_noise(model: ir.Model, name: str = "noise") -> ir.Model | None:
    """Let the random nodes of a prepared model's main graph read from one new input, in place.

    The new input, float32, is the graph's last. Returns a model whose only output, `noise_size`, an
    int64 scalar, is how many numbers the feeds need; its inputs are the feeds that this depends on,
    mostly for their shapes, none if every size is static. Where ONNX cannot infer a shape, that
    model computes it, with the current weights. None if nothing is random. Random nodes in branches
    and loops stay as they are: see `left_random`.

    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> x = op.input("x", "float32", ("batch", 4))
    >>> model = op.model(y=op.Dropout(x, np.float32(0.5), True))
    >>> size = take_noise(model)
    >>> [value.name for value in model.graph.inputs], [node.op_type for node in size.graph]
    (['x', 'noise'], ['Shape', 'Mul', 'Squeeze'])
    """
    _check_name(model, name)
    return feed_uniforms(model, draw_uniforms(model), name)


def feed_uniforms(model: ir.Model, draws: Draws | None, name: str = "noise") -> ir.Model | None:
    """Let the calls that draw read from one new input, in place; `draws` is from draw_uniforms.

    The model may have changed in between: gradients added, calls repeated or removed. Returns the
    model that computes how many numbers the feeds need, as `take_noise` does; None if nothing is
    drawn.
    """
    if draws is None:
        return None
    _check_name(model, name)
    vector = _Vector(model, name)
    found: dict[int, list[ir.Node]] = {}
    for call in calls(model.graph, UNIFORM, DROPOUT_MASK):
        found.setdefault(attribute(call, "node"), []).append(call)
    for number, need in enumerate(draws.calls):
        vector.assign(found.get(number, []), need)
    vector.close()
    _remove_unused(model, draws.input)
    model.graph.sort()
    return draws.size.clone()


def _check_name(model: ir.Model, name: str) -> None:
    if name in taken_names(model):
        raise OptionError(
            f"the model has a value {name!r} already: its noise needs another name\n"
            'pass one: take_noise(model, "uniform_numbers")'
        )


class _Vector:
    """The fed vector, and how many of its numbers are assigned to calls."""

    def __init__(self, model: ir.Model, name: str) -> None:
        self._graph, self._names, self._op = model.graph, Names(model), extend(model)
        self._vector = self._op.input(name, np.float32, (f"{name}_size",))
        self._values = values_by_name(model.graph)
        self._taken: Size = 0
        self._is_complete = True  # whether the size of every draw is known

    def assign(self, same: Sequence[ir.Node], need: UniformCount) -> None:
        """Assign the next numbers to the calls of one draw, which may be repeated or unused."""
        count = self._count(same, need)
        if count is None:
            self._is_complete = False  # an unused draw of unknown size gets no numbers
            return
        start, self._taken = self._taken, add_sizes(self._op, self._taken, count)
        if not same:
            return
        bounds = [self._op.shape(bound) for bound in (start, self._taken)]
        numbers: ir.Value = self._op.Slice(self._vector, *bounds, [0])
        if isinstance(count, int):
            numbers.shape = ir.Shape((count,))
        for call in same:
            self._replace(call, numbers)

    def close(self) -> None:
        """Set the vector's static length, if it is known."""
        if self._is_complete and isinstance(self._taken, int):
            self._vector.shape = ir.Shape((self._taken,))

    def _count(self, same: Sequence[ir.Node], need: UniformCount) -> Size | None:
        """How many numbers a draw needs: from its shape, or from sizes of the graph's values."""
        shape = same[0].inputs[1] if same else None
        known = ints(shape)
        if known is not None:
            return int(np.prod(known, dtype=np.int64))
        if shape is not None and static(shape) == (1,):
            return shape
        named = [factor[0] for factor in need.factors if not isinstance(factor, int)]
        if all(name in self._values for name in named):
            count = product_of_factors(self._op, need.factors, self._values)
            return half_rounded_up(self._op, count) if need.even else count
        product: ir.Value | None = None
        if shape is not None:
            product = self._op.ReduceProd(shape, keepdims=1)
        return product

    def _replace(self, call: ir.Node, numbers: ir.Value) -> None:
        op, shape = self._op, call.inputs[1]
        assert shape is not None
        u = _reshaped(op, numbers, call)
        if call.op_type == DROPOUT_MASK:
            kept, ratio = call.outputs[0], attribute(call, "ratio")
            readers = [node for node, index in kept.uses() if self._scales(node, index)]
            is_read = len(readers) < len(kept.uses()) or kept.is_graph_output()
            in_two = is_read or ratio < _FINEST  # passes: compare, then cast
            u = op.GreaterOrEqual(u, ratio) if in_two else _step(op, u, ratio)
            self._scale(readers, u)
        self._values.update(replace_node(self._graph, call, [u], self._names))
        _drop_shape(shape, self._graph)

    def _scales(self, node: ir.Node, index: int) -> bool:
        """Whether a node of this graph applies the mask that it reads."""
        is_call = node.domain == DOMAIN and node.op_type == MASKED_SCALE
        return is_call and index == 1 and node.graph is self._graph

    def _scale(self, readers: Sequence[ir.Node], mask: ir.Value) -> None:
        """y = x m, m = mask * scale made once for all readers of a mask"""
        op = self._op
        factors: dict[tuple[ir.Value, ir.DataType | None], ir.Value] = {}
        for reader in readers:
            x, _, scale = reader.inputs
            assert x is not None and scale is not None
            if (scale, x.dtype) not in factors:
                factors[scale, x.dtype] = op.cast_like(op.Mul(op.cast_like(mask, scale), scale), x)
            y = op.Mul(x, factors[scale, x.dtype])
            self._values.update(replace_node(self._graph, reader, [y], self._names))


def _reshaped(op: GraphOps, numbers: ir.Value, call: ir.Node) -> ir.Value:
    """Reshape a vector to a call's output shape; one unknown size needs no Shape node."""
    known, shape = dims(call.outputs[0]), call.inputs[1]
    if known is not None and len(known) == 1:
        return numbers
    if known is None or 0 in known or sum(not isinstance(size, int) for size in known) > 1:
        shaped: ir.Value = op.Reshape(numbers, shape, allowzero=1)
    else:
        sizes = (size if isinstance(size, int) else -1 for size in known)
        shaped = op.Reshape(numbers, op.shape(*sizes))
    shaped.shape = call.outputs[0].shape
    return shaped


def _step(op: GraphOps, u: ir.Value, edge: float) -> ir.Value:
    """[u >= edge] as one HardSigmoid: 0 at the float32 before the edge, 1 at the edge.

    Its slope is a power of two, so nothing is rounded.
    """
    before = np.nextafter(np.float32(edge), np.float32(0))
    slope = 1 / np.spacing(before)
    step: ir.Value = op.HardSigmoid(u, alpha=float(slope), beta=-float(before * slope))
    return step


def _drop_shape(value: ir.Value, graph: ir.Graph) -> None:
    """Remove an unused shape and the parts that it was concatenated from."""
    if value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    maker = value.producer()
    if maker is None:
        graph.initializers.pop(str(value.name), None)
        return
    if maker.op_type not in _SHAPES or len(maker.outputs) != 1:
        return
    read = [each for each in maker.inputs if each is not None]
    remove_node(maker, graph)
    for each in read if maker.op_type != "Shape" else ():
        _drop_shape(each, graph)


def _remove_unused(model: ir.Model, draw: str) -> None:
    """Remove the key, its input and the functions that are now unused."""
    graph = model.graph
    for node in calls(graph, RANDOM_KEY):
        if not node.outputs[0].uses():
            remove_node(node, graph)
    for value in [value for value in graph.inputs if value.name == draw and not value.uses()]:
        graph.inputs.remove(value)
    used = {node.op_identifier() for each in graphs_of(model) for node in each}
    for function in FUNCTIONS:
        if (DOMAIN, function, "") not in used:
            model.functions.pop((DOMAIN, function, ""), None)
    if not any(domain == DOMAIN for domain, *_ in (*used, *model.functions)):
        model.opset_imports.pop(DOMAIN, None)
