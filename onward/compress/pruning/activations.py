"""Moments of the data that weights read, measured in the graph, and the means put into biases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from onnx_ir._core import Usage

from onward.compress.calibration import Calibration
from onward.compress.pruning.axes import Array, Positions, constant, rank
from onward.graph.dtypes import FLOATS
from onward.graph.graph_ops import extend
from onward.passes.rewrite import Names
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession


@dataclass(frozen=True)
class ActivationMoments:
    """Mean and variance of each position of an axis."""

    mean: Array
    variance: Array


@dataclass(frozen=True)
class Consumer:
    """A node that sums data over an axis with a constant weight.

    Attributes:
        node: a Conv without groups, a Gemm, a MatMul, an LSTM, a GRU or an RNN
        x, axis: the data and the axis that is summed over
        weight: the weight
        place: the weight's axis that is summed over
    """

    node: ir.Node
    x: ir.Value
    axis: int
    weight: ir.Value
    place: int

    def matrix(self) -> Array:
        """The weight as (positions, everything else); a filter's taps are summed."""
        assert self.weight.const_value is not None
        array = np.asarray(self.weight.const_value.numpy(), np.float64)
        moved = np.moveaxis(array, self.place, 0)
        if self.node.op_type == "Conv":
            moved = moved.reshape(*moved.shape[:2], -1).sum(-1)
        matrix: Array = moved.reshape(len(moved), -1)
        return matrix

    def column_norms(self) -> Array:
        """The squared norm of the weights that read each position."""
        assert self.weight.const_value is not None
        array = np.asarray(self.weight.const_value.numpy(), np.float64)
        moved = np.moveaxis(array, self.place, 0)
        norms: Array = (moved.reshape(len(moved), -1) ** 2).sum(axis=1)
        return norms


def find_consumers(model: ir.Model, positions: Positions) -> list[Consumer]:
    """The nodes of the main graph whose weights read units that can be removed."""
    found = []
    for node in model.graph:
        each = _consumer(node)
        if each is None or each.x.dtype not in FLOATS:
            continue
        labels = positions.of((each.x, each.axis))
        if labels is not None and not positions.pinned[labels].all():
            found.append(each)
    return found


def _consumer(node: ir.Node) -> Consumer | None:
    if node.domain or len(node.inputs) < 2:
        return None
    x, w = node.inputs[0], node.inputs[1]
    count = rank(x)
    if x is None or w is None or not count or constant(w) is None or constant(x) is not None:
        return None
    if node.op_type == "Conv" and node.attributes.get_int("group", 1) == 1:
        return Consumer(node, x, 1, w, 1)
    if node.op_type == "Gemm" and not node.attributes.get_int("transA", 0):
        return Consumer(node, x, 1, w, 1 if node.attributes.get_int("transB", 0) else 0)
    if node.op_type == "MatMul" and rank(w) == 2:
        return Consumer(node, x, count - 1, w, 0)
    if node.op_type in ("LSTM", "GRU", "RNN"):
        return Consumer(node, x, count - 1, w, 2)
    return None


def measure_moments(
    model: ir.Model,
    consumers: Sequence[Consumer],
    calibration: Calibration,
    providers: Asked = None,
) -> dict[str, ActivationMoments]:
    """The moments of what each consumer reads, by the value's name; sums are made in the graph.

    Batches in which a value has NaN or infinity are left out of its moments.
    """
    axes = {str(each.x.name): each.axis for each in consumers}
    if not axes:
        return {}
    copy = model.clone()
    values = {str(v.name): v for node in copy.graph for v in node.outputs}
    values |= {str(v.name): v for v in copy.graph.inputs}
    op = extend(copy)
    added: list[ir.Value] = []
    for name, axis in axes.items():
        x = values[name]
        others = [place for place in range(rank(x) or 0) if place != axis]
        for y in (x, op.Mul(x, x)):
            added.append(op.ReduceMean(y, others, keepdims=0))
        added.append(op.Size(x))
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(added)
    session = InferenceSession(copy, SessionOptions(log_severity_level=4), providers)
    return _combined(
        (axes, [np.asarray(y, np.float64) for y in session.run(None, feeds)])
        for feeds in calibration.batches()
    )


def _combined(batches: Iterable[tuple[Iterable[str], list[Array]]]) -> dict[str, ActivationMoments]:
    """The moments over all batches; each counts by its numbers, as batches differ in size.

    Args:
        batches: names, and for each of them its mean, its mean square and how many numbers it has
    """
    sums: dict[str, tuple[Array, Array, Array]] = {}
    zero = np.zeros(())
    for names, found in batches:
        for name, mean, square, size in zip(names, found[::3], found[1::3], found[2::3]):
            if size and np.isfinite(mean).all() and np.isfinite(square).all():
                a, b, count = sums.get(name, (zero, zero, zero))
                sums[name] = a + size * mean, b + size * square, count + size
    return {
        name: ActivationMoments(a / count, np.maximum(b / count - (a / count) ** 2, 0))
        for name, (a, b, count) in sums.items()
    }


def fold_means(
    model: ir.Model, removed: Array, positions: Positions, moments: Mapping[str, ActivationMoments]
) -> ir.Model:
    """Add to each consumer's bias, in place, what the mean of the removed units contributes."""
    names = Names(model)
    for consumer in find_consumers(model, positions):
        labels = positions.of((consumer.x, consumer.axis))
        found = moments.get(str(consumer.x.name))
        if labels is None or found is None or not removed[labels].any():
            continue
        gone = removed[labels]
        matrix = consumer.matrix()
        _add_bias(consumer.node, found.mean[gone] @ matrix[gone], names)
    return model


def _add_bias(node: ir.Node, delta: Array, names: Names) -> None:
    """Add a vector to a node's result: to its bias, the bias behind it, or a new one."""
    w = node.inputs[1]
    assert w is not None and w.const_value is not None
    dtype = w.const_value.numpy().dtype
    if node.op_type in ("LSTM", "GRU", "RNN"):
        bias = constant(node.inputs[3]) if len(node.inputs) > 3 else None
        if bias is not None:
            wide = np.zeros(bias.shape)
            gates = delta.reshape(bias.shape[0], -1)
            wide[:, : gates.shape[1]] = gates
            _set_constant(node, 3, (bias + wide).astype(dtype), names)
        return
    if node.op_type in ("Conv", "Gemm"):
        bias = constant(node.inputs[2]) if len(node.inputs) > 2 else None
        if node.op_type == "Gemm":
            delta = delta * node.attributes.get_float("alpha", 1.0)
            delta = delta / (node.attributes.get_float("beta", 1.0) or 1.0)
        if bias is None and len(node.inputs) > 2 and node.inputs[2] is not None:
            return  # computed
        total = delta if bias is None else bias + delta
        _set_constant(node, 2, total.astype(dtype), names)
        return
    _add_behind(node, delta.astype(dtype), names)


def _add_behind(node: ir.Node, delta: Array, names: Names) -> None:
    """Add a vector to the bias that is added to a MatMul's result; without one, make an Add."""
    y = node.outputs[0]
    uses = list(y.uses())
    if len(uses) == 1 and uses[0].node.op_type == "Add" and not y.is_graph_output():
        add, place = uses[0].node, 1 - uses[0].idx
        bias = constant(add.inputs[place])
        if bias is not None and bias.shape[-1:] == delta.shape and bias.size == delta.size:
            _set_constant(add, place, (bias + delta).astype(bias.dtype), names)
            return
    if y.is_graph_output():
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    add = ir.node("Add", inputs=[y, None], name=names.fresh(f"{node.name}_mean"))
    add.outputs[0].name = names.fresh(f"{y.name}_mean")
    add.outputs[0].type, add.outputs[0].shape = y.type, y.shape
    graph.insert_after(node, add)
    _set_constant(add, 1, delta, names)
    _replace_uses(uses, add.outputs[0])


def _replace_uses(uses: Iterable[Usage], value: ir.Value) -> None:
    for use in uses:
        use.node.replace_input_with(use.idx, value)


def _set_constant(node: ir.Node, place: int, array: Array, names: Names) -> None:
    name = names.fresh(f"{node.name or node.op_type}_bias")
    value = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        shape=ir.Shape(array.shape),
        const_value=ir.tensor(array, name=name),
    )
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    graph.register_initializer(value)
    if len(node.inputs) <= place:
        node.resize_inputs(place + 1)
    node.replace_input_with(place, value)
