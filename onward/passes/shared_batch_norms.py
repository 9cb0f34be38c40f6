"""share_batch_norms: BatchNormalization over the batches of all processes.

    y, mean, var = BatchNormalization(x, scale, b)      in training mode

becomes, for each channel, with n the elements of this process and N those of all,

    m, s = BatchMoments(x)                              the mean, and the sum of (x - m)^2
    sums = AllReduce(n m, s, n m^2, n)                  over all processes, in float64
    mean = sum(n m) / N
    var = (sum(s) + sum(n m^2)) / N - mean^2
    y = BatchNormalization(x, scale, b, mean, var)      in inference mode

Deviations are from each process's own mean, so that nothing is lost where means are large; what is
left to cancel is float64. AllReduce and BatchMoments are composites (composites.py): within one
process, a sum over processes is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.dtypes import HALVES
from onward.graph.graph_ops import GraphOps, extend, rank
from onward.passes.composites import DOMAIN, FIRST_IR, VERSION, outline
from onward.passes.drop_unused import drop_unused
from onward.passes.training_mode import is_trained_batch_norm
from onward.passes.value_facts import attribute

ALL_REDUCE, MOMENTS = "AllReduce", "BatchMoments"


def share_batch_norms(model: ir.Model, *, unbiased: bool = False) -> int:
    """Share the statistics of the nodes that `train_mode` has put into training mode; how many.

    `unbiased`: running variances are divided by N - 1, as torch's are; `train_mode` is then to
    leave them as they are.
    """
    nodes = [node for node in model.graph if is_trained_batch_norm(node)]
    op = extend(model)
    for node in nodes:
        _share(model, op, node, unbiased)
    if nodes:
        model.opset_imports[DOMAIN] = VERSION
        model.ir_version = max(model.ir_version or 0, FIRST_IR)
        model.graph.sort()
        drop_unused(model)
    return len(nodes)


def _share(model: ir.Model, op: GraphOps, node: ir.Node, unbiased: bool) -> None:
    x, scale, b = node.inputs[:3]
    y, *running = node.outputs
    assert x is not None and scale is not None and b is not None
    mean, var, count = _statistics(model, op, x, _channels(scale))
    wide = ir.DataType.FLOAT if x.dtype in HALVES else x.dtype
    given = [op.Cast(each, to=int(wide or 1)) for each in (mean, var)]
    new = op.BatchNormalization(x, scale, b, *given, epsilon=attribute(node, "epsilon"))
    new.type, new.shape = y.type, y.shape
    if unbiased:
        var = op.Mul(var, op.Div(count, op.Max(op.Sub(count, 1.0), 1.0)))
    kept = [op.Cast(each, to=int(old.dtype or 1)) for each, old in zip((mean, var), running)]
    for old, value in zip((y, *running), (new, *kept)):
        value.shape = old.shape
        _replace(model.graph, old, value)
    model.graph.remove(node, safe=True)


def _statistics(
    model: ir.Model, op: GraphOps, x: ir.Value, channels: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Mean and variance of each channel over all processes, and the elements of one, in float64."""
    m, s = (op.Cast(each, to=int(ir.DataType.DOUBLE)) for each in _moments(model, op, x))
    count = op.product(op.size(x, 0), *op.sizes(x)[2:])
    n = (
        op.constant(np.array([count], np.float64))
        if isinstance(count, int)
        else op.Cast(count, to=int(ir.DataType.DOUBLE))
    )
    nm = op.Mul(m, n)
    part = op.Concat(nm, s, op.Mul(m, nm), n, axis=0)
    part.shape = ir.Shape([3 * channels + 1])
    [total] = _call(model, [part], [op.Identity(part)], ALL_REDUCE)
    sizes = np.array([channels, channels, channels, 1])
    sum_m, sum_s, sum_m2, count_all = op.Split(total, sizes, axis=0, outputs=4)
    mean = op.Div(sum_m, count_all)
    within = op.Div(sum_s, count_all)
    # rounding may leave less than zero between the means of processes
    between = op.Relu(op.Sub(op.Div(sum_m2, count_all), op.Mul(mean, mean)))
    return mean, op.Add(within, between), count_all


def _moments(model: ir.Model, op: GraphOps, x: ir.Value) -> list[ir.Value]:
    """The mean of each channel of this process, and the sum of squared deviations from it."""
    wide = op.Cast(x, to=int(ir.DataType.FLOAT)) if x.dtype in HALVES else op.Identity(x)
    axes = [axis for axis in range(rank(x)) if axis != 1]
    mean = op.ReduceMean(wide, axes, keepdims=1)
    squares = op.ReduceSumSquare(op.Sub(wide, mean), axes, keepdims=0)
    flat = op.Squeeze(mean, axes)
    return _call(model, [x], [flat, squares], MOMENTS)


def _call(
    model: ir.Model, given: Sequence[ir.Value], results: Sequence[ir.Value], name: str
) -> list[ir.Value]:
    """Replace the nodes at the end of the graph, which compute results from `given`, by a call."""
    nodes: list[ir.Node] = []
    waiting = [result.producer() for result in results]
    while waiting:
        node = waiting.pop()
        if node is None or node in nodes:
            continue
        nodes.append(node)
        waiting += [value.producer() for value in node.inputs if value and value not in given]
    ordered = [node for node in model.graph if node in nodes]
    return outline(model.functions, model.opset_imports, ordered, name, given, results, {})


def _channels(scale: ir.Value) -> int:
    size = None if scale.shape is None else scale.shape[0]
    if not isinstance(size, int):
        raise UnsupportedModel(
            f"BatchNormalization with a scale {scale.name!r} of unknown size cannot be shared by "
            "processes\ntrain without sync_batch_norm, or make the scale an initializer"
        )
    return size


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let the readers of a value read another, which takes its name where it is an output."""
    for i, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[i] = new
            old.name, new.name = new.name, old.name
    old.replace_all_uses_with(new)
