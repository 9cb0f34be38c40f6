"""Noise: randomness as data, so that whoever has the numbers can repeat the run.

    size = take_noise(model)                # the model has a new input, its last: `noise`
    (n,) = session_of(size).run(None, ...)  # how many numbers these feeds need
    feeds["noise"] = generator.random(n, np.float32)

Engines keep their random generators to themselves. Here every random node of the main graph takes
its numbers from one vector of uniform numbers in [0, 1): each as many as it needs, one node after
the other. The same numbers give the same results, on any engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.extension import GraphOps, Size, extend, taken_names
from onward.graph.operators import is_random
from onward.graph.scopes import graphs_of
from onward.passes.facts import attribute, input_of, is_constant, scalar
from onward.passes.modes import keep_all
from onward.passes.noise_size import Need, need_of, plus, size_model, size_of, symbols_of, values_of
from onward.passes.rewrite import Names, substitute

_FLOAT = ir.DataType.FLOAT
_FINEST = 2.0**-24  # the step between the uniform numbers that generators draw in float32


def take_noise(model: ir.Model, name: str = "noise") -> ir.Model | None:
    """Let the random nodes of a prepared model's main graph read from one new input, in place.

    The new input, float32, is the graph's last. Returns a model whose only output, `noise_size`, an
    int64 scalar, says how many numbers the feeds ask for; it takes those of the feeds that matter,
    mostly for their shapes alone, and none at all where every size is known. Where ONNX does not
    know a shape, that model computes it, with the weights that the model has now. None if nothing
    is random. Random nodes in branches and loops stay as they are: see `left_random`.

    >>> from onward.graph.builder import OpBuilder
    >>> op = OpBuilder()
    >>> x = op.input("x", "float32", ("batch", 4))
    >>> model = op.model(y=op.Dropout(x, np.float32(0.5), True))
    >>> size = take_noise(model)
    >>> [value.name for value in model.graph.inputs], [node.op_type for node in size.graph]
    (['x', 'noise'], ['Shape', 'Mul', 'Squeeze'])
    """
    if name in taken_names(model):
        raise OptionError(
            f"the model has a value {name!r} already: its noise needs another name\n"
            'pass one: take_noise(model, "uniform_numbers")'
        )
    names = Names(model)
    for node in list(filter(is_random, model.graph)):
        if _keeps_all(node):
            keep_all(node, model.opset_imports[""], names)
    nodes = [node for node in model.graph if is_random(node)]
    if not nodes:
        return None
    symbols = symbols_of(model.graph)
    needs = [need_of(node, symbols) for node in nodes]
    size = size_model(model, needs)
    op = extend(model)
    noise = op.input(name, np.float32, (f"{name}_size",))
    uniforms = _Uniforms(op, noise)
    for node, need in zip(nodes, needs):
        made = _RULES[node.op_type](op, node, uniforms, need)
        uniforms.values.update(_replace(op.graph, node, made, names))
    if isinstance(uniforms.taken, int):
        noise.shape = ir.Shape((uniforms.taken,))
    model.graph.sort()
    return size


def left_random(model: ir.Model) -> list[str]:
    """The random nodes in branches and loops, by name: no noise from outside reaches them."""
    inner = (node for graph in graphs_of(model)[1:] for node in graph)
    return [node.name or str(node.outputs[0].name) for node in inner if is_random(node)]


def _keeps_all(node: ir.Node) -> bool:
    """Whether it is a Dropout that drops nothing."""
    ratio = scalar(input_of(node, 1)) if node.op_type == "Dropout" else None
    return ratio is not None and ratio <= 0


class _Uniforms:
    """The numbers that are left in the noise."""

    def __init__(self, op: GraphOps, noise: ir.Value) -> None:
        self._op, self._noise = op, noise
        self.taken: Size = 0
        self.values = values_of(op.graph)

    def count(self, need: Need) -> Size:
        """How many elements a node has."""
        return size_of(self._op, need.count, self.values)

    def take(self, count: Size) -> ir.Value:
        """The next numbers, as a vector."""
        start, self.taken = self.taken, plus(self._op, self.taken, count)
        bounds = [self._op.shape(bound) for bound in (start, self.taken)]
        numbers: ir.Value = self._op.Slice(self._noise, *bounds, [0])
        if isinstance(count, int):
            numbers.shape = ir.Shape((count,))
        return numbers


Made = list[ir.Value | None]
_Rule = Callable[[GraphOps, ir.Node, _Uniforms, Need], Made]


def _replace(graph: ir.Graph, node: ir.Node, made: Made, names: Names) -> dict[str, ir.Value]:
    """Let what was made stand for the node's outputs, under their names."""
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


# -- dropout -------------------------------------------------------------------------------------


def _dropout(op: GraphOps, node: ir.Node, uniforms: _Uniforms, need: Need) -> Made:
    """y = x m, m = [u >= ratio] / (1 - ratio): the gradient reads m again, dx = dy m"""
    x = _input(node)
    u = op.reshape_as(uniforms.take(uniforms.count(need)), x)
    wants_mask = len(node.outputs) > 1 and bool(node.outputs[1].name)
    ratio = 0.5 if input_of(node, 1) is None else scalar(input_of(node, 1))
    exact = ir.DataType.DOUBLE if x.dtype == ir.DataType.DOUBLE else _FLOAT
    kept: ir.Value | None = None
    scale: ir.Value | float
    if ratio is None or not is_constant(input_of(node, 2)):
        kept, scale = _dynamic_dropout(op, node, u, exact)
        mask = op.Cast(kept, to=int(exact))
    else:
        scale = 1 / (1 - ratio) if ratio < 1 else 0.0
        if wants_mask or ratio < _FINEST:
            kept = op.GreaterOrEqual(u, ratio)
            mask = op.Cast(kept, to=int(exact))
        else:
            mask = _cast(op, _step(op, u, ratio), exact)
    y = op.Mul(x, op.cast_like(op.Mul(mask, scale), x))
    return [y, kept if wants_mask else None]


def _dynamic_dropout(
    op: GraphOps, node: ir.Node, u: ir.Value, exact: ir.DataType
) -> tuple[ir.Value, ir.Value]:
    """[u >= ratio] and 1 / (1 - ratio), the ratio 0 where the model is not in training."""
    given, training = input_of(node, 1), input_of(node, 2)
    if given is None:
        ratio = op.constant(np.array(0.5, exact.numpy()))
    else:
        ratio = op.Reshape(_cast(op, given, exact), np.array([], np.int64))
    if training is not None and not is_constant(training):
        mode = op.Reshape(training, np.array([], np.int64))
        ratio = op.Where(mode, ratio, 0.0)
    rest = op.Sub(1.0, ratio)
    scale = op.Where(op.Greater(rest, 0.0), op.Reciprocal(rest), 0.0)
    return op.GreaterOrEqual(u, _cast(op, ratio, _FLOAT)), scale


def _step(op: GraphOps, u: ir.Value, edge: float) -> ir.Value:
    """[u >= edge] in one pass: a line from 0 to 1, so steep that no float32 lies on it.

    The line leaves 0 at the number before the edge and reaches 1 at the edge; its slope is a power
    of two, so nothing is rounded on the way.
    """
    before = np.nextafter(np.float32(edge), np.float32(0))
    slope = 1 / np.spacing(before)
    step: ir.Value = op.HardSigmoid(u, alpha=float(slope), beta=-float(before * slope))
    return step


# -- distributions -------------------------------------------------------------------------------


def _uniform(op: GraphOps, node: ir.Node, uniforms: _Uniforms, need: Need) -> Made:
    """y = low + (high - low) u"""
    low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
    y = uniforms.take(uniforms.count(need))
    y = y if high - low == 1 else op.Mul(y, high - low)
    y = y if low == 0 else op.Add(y, low)
    return [_cast(op, _shaped(op, node, y), _dtype(node))]


def _normal(op: GraphOps, node: ir.Node, uniforms: _Uniforms, need: Need) -> Made:
    """Box and Muller: sqrt(-2 log(1 - u)) of cos(2 pi v) and of sin(2 pi v) are two normal ones"""
    count = uniforms.count(need)
    half = (count + 1) // 2 if isinstance(count, int) else op.Div(op.Add(count, 1), 2)
    u, v = uniforms.take(half), uniforms.take(half)
    radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, u)), -2.0))
    angle = op.Mul(v, 2 * math.pi)
    pairs = op.Concat(op.Mul(radius, op.Cos(angle)), op.Mul(radius, op.Sin(angle)), axis=0)
    if not isinstance(count, int) or count % 2:
        pairs = op.Slice(pairs, [0], op.shape(count), [0])
    mean, scale = attribute(node, "mean", 0.0), attribute(node, "scale", 1.0)
    y = pairs if scale == 1 else op.Mul(pairs, scale)
    y = y if mean == 0 else op.Add(y, mean)
    return [_cast(op, _shaped(op, node, y), _dtype(node))]


def _bernoulli(op: GraphOps, node: ir.Node, uniforms: _Uniforms, need: Need) -> Made:
    """y = [u < p]"""
    p = _input(node)
    u = op.reshape_as(uniforms.take(uniforms.count(need)), p)
    return [_cast(op, op.Less(u, _cast(op, p, _FLOAT)), _dtype(node))]


def _multinomial(op: GraphOps, node: ir.Node, uniforms: _Uniforms, need: Need) -> Made:
    """How many classes end at or below u on the way from 0 to the sum of all: the inverse cdf"""
    logits, samples = _input(node), attribute(node, "sample_size", 1)
    ends = op.CumSum(op.Softmax(_cast(op, logits, _FLOAT), axis=-1), np.int64(1))
    total = op.Slice(ends, [-1], [np.iinfo(np.int64).max], [1])  # (batch, 1)
    u = uniforms.take(uniforms.count(need))
    u = op.Reshape(u, op.shape(op.size(logits, 0), samples), allowzero=1)  # (batch, samples)
    below = op.GreaterOrEqual(op.Unsqueeze(op.Mul(u, total), [2]), op.Unsqueeze(ends, [1]))
    index = op.ReduceSum(op.Cast(below, to=int(ir.DataType.INT32)), [2], keepdims=0)
    return [_cast(op, index, ir.DataType(attribute(node, "dtype", int(ir.DataType.INT32))))]


_RULES: dict[str, _Rule] = {
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
    """A vector in the shape that the node gives: its attribute's, or its input's."""
    if node.inputs:
        return op.reshape_as(y, _input(node))
    shaped: ir.Value = op.Reshape(y, op.shape(*attribute(node, "shape")), allowzero=1)
    return shaped


def _dtype(node: ir.Node) -> ir.DataType:
    """The type of what a random node gives."""
    like = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return ir.DataType(attribute(node, "dtype", int(like or _FLOAT)))


def _cast(op: GraphOps, value: ir.Value, dtype: ir.DataType) -> Any:
    return value if value.dtype == dtype else op.Cast(value, to=int(dtype))
