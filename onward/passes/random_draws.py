"""Write random nodes as formulas over uniform numbers: a function of seed, step and node.

    draws = draw_uniforms(model)     # the model has a new input, its last: `onward.draw`
    feeds["onward.draw"] = np.array([seed, step, micro_batch])

Every engine has another random generator. Here each random node of the main graph becomes its
formula over calls of `onward::Uniform` (or `onward::DropoutMask`), whose bodies are standard
operators: see `random_functions.py`. Gradients read the formulas. An engine that prefers to be fed
the numbers replaces the calls with `feed_uniforms` (fed_uniforms.py), before or after the model was
differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps, Size, extend, taken_names
from onward.graph.operators import is_random
from onward.graph.scopes import graphs_of
from onward.passes.fed_uniform_count import (
    UniformCount,
    count_uniforms,
    product_of_factors,
    size_model,
    symbols_of,
    values_by_name,
)
from onward.passes.random_functions import (
    DOMAIN,
    DROPOUT_MASK,
    MASKED_SCALE,
    RANDOM_KEY,
    UNIFORM,
    register,
)
from onward.passes.rewrite import Names, substitute
from onward.passes.training_mode import disable_dropout
from onward.passes.value_facts import attribute, input_of, is_constant, scalar

DRAW = "onward.draw"
_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class Draws:
    """How many numbers each call of a model draws, and a model that computes the sum."""

    input: str  # the graph input (seed, step, micro-batch)
    calls: tuple[UniformCount, ...]  # by the calls' `node`; an even count is shared by two calls
    size: ir.Model  # its output `noise_size` is how many numbers the feeds need


def draw_uniforms(model: ir.Model, name: str = DRAW) -> Draws | None:
    """Write the random nodes of a prepared model's main graph as formulas, in place.

    The formulas read calls of `onward::Uniform`, which read a new graph input, the last: int64,
    (seed, step, micro-batch). None if nothing is random. Random nodes in branches and loops stay as
    they are: see `left_random`.

    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> x = op.input("x", "float32", (8, 4))
    >>> model = op.model(y=op.Dropout(x, np.float32(0.5), True))
    >>> draws = draw_uniforms(model)
    >>> [value.name for value in model.graph.inputs], [node.op_type for node in model.graph]
    (['x', 'onward.draw'], ['RandomKey', 'DropoutMask', 'MaskedScale'])
    """
    if name in taken_names(model):
        raise OptionError(
            f"the model has a value {name!r} already: its draws need another name\n"
            'pass one: draw_uniforms(model, "seed_and_step")'
        )
    remove_idle_dropouts(model)
    names = Names(model)
    nodes = [node for node in model.graph if is_random(node)]
    if not nodes:
        return None
    symbols = symbols_of(model.graph)
    needs = [count_uniforms(node, symbols) for node in nodes]
    size = size_model(model, needs)
    source = _Source(model, name)
    for node, need in zip(nodes, needs):
        made = _RULES[node.op_type](source, node, need)
        source.values.update(replace_node(model.graph, node, made, names))
    model.graph.sort()
    return Draws(name, tuple(source.calls), size)


def remove_idle_dropouts(model: ir.Model) -> None:
    """Remove the Dropouts of a model's main graph that drop nothing, of ratio 0."""
    names = Names(model)
    for node in list(filter(is_random, model.graph)):
        if _keeps_all(node):
            disable_dropout(node, model.opset_imports[""], names)


def left_random(model: ir.Model) -> list[str]:
    """The names of random nodes in branches and loops, for which the engine draws."""
    inner = (node for graph in graphs_of(model)[1:] for node in graph)
    return [node.name or str(node.outputs[0].name) for node in inner if is_random(node)]


def _keeps_all(node: ir.Node) -> bool:
    """Whether a node is a Dropout of ratio 0."""
    ratio = scalar(input_of(node, 1)) if node.op_type == "Dropout" else None
    return ratio is not None and ratio <= 0


Made = list[ir.Value | None]


def replace_node(graph: ir.Graph, node: ir.Node, made: Made, names: Names) -> dict[str, ir.Value]:
    """Replace a node's outputs by new values of the same names; None keeps nothing."""
    named: dict[str, ir.Value] = {}
    for old, new in zip(node.outputs, made):
        if new is None:
            continue
        new.shape = old.shape if old.shape is not None else new.shape
        name, returned = str(old.name), old.is_graph_output()
        substitute(old, new, names)
        if not returned:
            old.name, new.name = names.fresh(f"{name}/replaced"), name
        named[name] = new
    graph.remove(node, safe=True)
    return named


class _Source:
    """Writes calls that draw numbers, and records how many each draws."""

    def __init__(self, model: ir.Model, name: str) -> None:
        self._model, self.op = model, extend(model)
        register(model, RANDOM_KEY)
        self._key = self.op.RandomKey(self.op.input(name, np.int64, (3,)), domain=DOMAIN)
        self._key.dtype, self._key.shape = ir.DataType.INT32, ir.Shape((2,))
        self.values = values_by_name(model.graph)
        self.calls: list[UniformCount] = []

    def uniform(self, need: UniformCount, shape: ir.Value, known: ir.Shape | None) -> ir.Value:
        """Numbers in [0, 1) of a shape; `known` is the shape as far as it is static."""
        return self._call(UNIFORM, need, shape, known, _FLOAT)

    def uniform_like(self, need: UniformCount, x: ir.Value) -> ir.Value:
        """Numbers in [0, 1), as many as x has elements."""
        return self.uniform(need, self.op.shape_of(x), x.shape)

    def mask_like(self, need: UniformCount, x: ir.Value, ratio: float) -> ir.Value:
        """A boolean mask of x's shape; an element is true with probability 1 - ratio."""
        shape = self.op.shape_of(x)
        return self._call(DROPOUT_MASK, need, shape, x.shape, ir.DataType.BOOL, ratio=ratio)

    def masked_scale(self, x: ir.Value, mask: ir.Value, scale: ir.Value) -> ir.Value:
        """x * mask * scale"""
        register(self._model, MASKED_SCALE)
        y: ir.Value = self.op.MaskedScale(x, mask, scale, domain=DOMAIN)
        y.type, y.shape = x.type, x.shape
        return y

    def _call(
        self,
        function: str,
        need: UniformCount,
        shape: ir.Value,
        known: ir.Shape | None,
        dtype: ir.DataType,
        **attributes: Any,
    ) -> ir.Value:
        register(self._model, function)
        attributes = {"node": len(self.calls), **attributes}
        value = self.op.node(function, (self._key, shape), attributes, domain=DOMAIN)
        assert isinstance(value, ir.Value)
        value.dtype, value.shape = dtype, known
        self.calls.append(need)
        return value


# -- dropout -------------------------------------------------------------------------------------


def _dropout(source: _Source, node: ir.Node, need: UniformCount) -> Made:
    """y = x m / (1 - ratio), m = [u >= ratio]: the gradient reads m, one byte an element"""
    op, x = source.op, _input(node)
    wants_mask = len(node.outputs) > 1 and bool(node.outputs[1].name)
    ratio = 0.5 if input_of(node, 1) is None else scalar(input_of(node, 1))
    exact = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else _FLOAT
    if ratio is not None and is_constant(input_of(node, 2)):
        kept = source.mask_like(need, x, ratio)
        scale = 1 / (1 - ratio) if ratio < 1 else 0.0
        y = source.masked_scale(x, kept, op.constant(np.array(scale, exact.numpy())))
    else:
        kept, factor = _dynamic_dropout(source, node, need, exact)
        y = op.Mul(x, op.cast_like(op.Mul(op.Cast(kept, to=int(exact)), factor), x))
    return [y, kept if wants_mask else None]


def _dynamic_dropout(
    source: _Source, node: ir.Node, need: UniformCount, exact: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """[u >= ratio] and 1 / (1 - ratio), with ratio 0 when the model is not in training mode."""
    op, given, training = source.op, input_of(node, 1), input_of(node, 2)
    if given is None:
        ratio = op.constant(np.array(0.5, exact.numpy()))
    else:
        ratio = op.Reshape(_cast(op, given, exact), np.array([], np.int64))
    if training is not None and not is_constant(training):
        mode = op.Reshape(training, np.array([], np.int64))
        ratio = op.Where(mode, ratio, 0.0)
    rest = op.Sub(1.0, ratio)
    scale = op.Where(op.Greater(rest, 0.0), op.Reciprocal(rest), 0.0)
    u = source.uniform_like(need, _input(node))
    return op.GreaterOrEqual(u, _cast(op, ratio, _FLOAT)), scale


# -- distributions -------------------------------------------------------------------------------


def _uniform(source: _Source, node: ir.Node, need: UniformCount) -> Made:
    """y = low + (high - low) u"""
    op, low, high = source.op, attribute(node, "low", 0.0), attribute(node, "high", 1.0)
    if node.inputs:
        y = source.uniform_like(need, _input(node))
    else:
        shape = attribute(node, "shape")
        y = source.uniform(need, op.shape(*shape), ir.Shape(shape))
    y = y if high - low == 1 else op.Mul(y, high - low)
    y = y if low == 0 else op.Add(y, low)
    return [_cast(op, y, _dtype(node))]


def _normal(source: _Source, node: ir.Node, need: UniformCount) -> Made:
    """Box and Muller: sqrt(-2 log(1 - u)) times cos(2 pi v) and times sin(2 pi v)"""
    op = source.op
    count = product_of_factors(op, need.factors, source.values)
    half = half_rounded_up(op, count)
    known = ir.Shape((half if isinstance(half, int) else None,))
    u, v = (source.uniform(need, op.shape(half), known) for _ in range(2))
    radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, u)), -2.0))
    angle = op.Mul(v, 2 * math.pi)
    pairs = op.Concat(op.Mul(radius, op.Cos(angle)), op.Mul(radius, op.Sin(angle)), axis=0)
    if not isinstance(count, int) or count % 2:
        pairs = op.Slice(pairs, [0], op.shape(count), [0])
    mean, scale = attribute(node, "mean", 0.0), attribute(node, "scale", 1.0)
    y = pairs if scale == 1 else op.Mul(pairs, scale)
    y = y if mean == 0 else op.Add(y, mean)
    return [_cast(op, _shaped(op, node, y), _dtype(node))]


def half_rounded_up(op: GraphOps, count: Size) -> Size:
    """Half of a count, rounded up."""
    if isinstance(count, int):
        return (count + 1) // 2
    half: ir.Value = op.Div(op.Add(count, 1), 2)
    return half


def _bernoulli(source: _Source, node: ir.Node, need: UniformCount) -> Made:
    """y = [u < p]"""
    op, p = source.op, _input(node)
    drawn = op.Less(source.uniform_like(need, p), _cast(op, p, _FLOAT))
    return [_cast(op, drawn, _dtype(node))]


def _multinomial(source: _Source, node: ir.Node, need: UniformCount) -> Made:
    """The inverse cdf: y = number of classes whose cumulated probability is at most u"""
    op, logits, samples = source.op, _input(node), attribute(node, "sample_size", 1)
    ends = op.CumSum(op.Softmax(_cast(op, logits, _FLOAT), axis=-1), np.int64(1))
    total = op.Slice(ends, [-1], [np.iinfo(np.int64).max], [1])  # (batch, 1)
    batch = op.size(logits, 0)
    known = ir.Shape((batch if isinstance(batch, int) else None, samples))
    u = source.uniform(need, op.shape(batch, samples), known)  # (batch, samples)
    below = op.GreaterOrEqual(op.Unsqueeze(op.Mul(u, total), [2]), op.Unsqueeze(ends, [1]))
    index = op.ReduceSum(op.Cast(below, to=int(ir.DataType.INT32)), [2], keepdims=0)
    return [_cast(op, index, ir.DataType(attribute(node, "dtype", int(ir.DataType.INT32))))]


_RULES: dict[str, Callable[[_Source, ir.Node, UniformCount], Made]] = {
    "Dropout": _dropout,
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}


def _input(node: ir.Node) -> ir.Value:
    value = node.inputs[0]
    assert value is not None
    return value


def _shaped(op: GraphOps, node: ir.Node, y: ir.Value) -> ir.Value:
    """Reshape a vector to the node's output shape: its attribute, or its input's shape."""
    if node.inputs:
        return op.reshape_as(y, _input(node))
    shaped: ir.Value = op.Reshape(y, op.shape(*attribute(node, "shape")), allowzero=1)
    return shaped


def _dtype(node: ir.Node) -> ir.DataType:
    """The element type of a random node's output."""
    like = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return ir.DataType(attribute(node, "dtype", int(like or _FLOAT)))


def _cast(op: GraphOps, value: ir.Value, dtype: ir.DataType) -> Any:
    return value if value.dtype == dtype else op.Cast(value, to=int(dtype))
