"""Rewrite a training model into forms that stock onnxruntime's CPU kernels run faster.

`gradient` writes standard operators, for any engine. The forms here compute the same, were measured
on onnxruntime, and may use operators of com.microsoft. Rules for activations, normalisations
and matrix products are in `activation_norm_matmul.py`; sums of rows and the cross entropy, which
look at more than one node, are here; long sums, which must be exact, are in `long_sums.py`. Forms
for one kind of processor only are in `x86_forms.py`, `blocked_convolutions.py` and
`small_image_convolutions.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.scopes import graphs_of
from onward.graph.shapes.infer import infer_missing
from onward.passes.deduplicate import share_expressions, share_initializers
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.normalize import fill_default_attributes
from onward.passes.pass_sequence import PassSequence
from onward.passes.rewrite import (
    Names,
    Ops,
    Rules,
    insert_made_nodes,
    remove_node,
    replace,
    rewrite,
    substitute,
)
from onward.passes.upgrade import upgrade_opset
from onward.passes.value_facts import (
    Dim,
    attribute,
    dims,
    input_of,
    ints,
    like,
    made_by,
    rank,
    reads_once,
)
from onward.providers.ort.processors import ANY, AVX512
from onward.providers.ort.rewrites import (
    activation_norm_matmul,
    blocked_convolutions,
    long_sums,
    small_image_convolutions,
    x86_forms,
)


def fuse_for_onnxruntime(model: ir.Model, processor: str = ANY) -> ir.Model:
    """Rewrite a training model into the forms that stock onnxruntime's CPU kernels run fastest.

    In place; inputs and outputs stay. The result may hold operators of com.microsoft. What training
    changes must be an input of the graph: initializers are taken for constants. `processor` is one
    of processors.py: the result for ANY runs on all of them.
    """
    model = _FASTER_FORMS[processor](model)
    try:
        return lower_opset(model, STOCK_OPSET)
    except UnsupportedModel:  # the model's forward needs a newer one
        return model


def rewrite_with_gradients(model: ir.Model) -> ir.Model:
    """Share work between activations or norms and their gradients; fuse Transpose and MatMul."""
    return _apply(model, activation_norm_matmul.rule | activation_norm_matmul.norm_rule)


def rewrite_for_avx512(model: ir.Model) -> ir.Model:
    """The same with the forms for x86-64 with AVX-512."""
    model = _apply(model, activation_norm_matmul.rule | x86_forms.rule)
    return _apply(model, blocked_convolutions.rule | small_image_convolutions.rule)


def _apply(model: ir.Model, rules: Rules) -> ir.Model:
    if rewrite(model, rules):
        used = {node.domain for graph in graphs_of(model) for node in graph}
        for domain in (activation_norm_matmul.MICROSOFT, blocked_convolutions.NCHWC):
            if domain in used:
                model.opset_imports[domain] = 1
    return model


# -- sums of rows ----------------------------------------------------------------------------------


def sum_rows_by_product(model: ir.Model) -> ir.Model:
    """sum over the first axes = ones x: onnxruntime's ReduceSum is slow there on several threads.

    A bias's gradient is such a sum; benchmarks/backward.py measures it.
    """
    names = Names(model)
    for graph in graphs_of(model):
        ones: dict[tuple[Dim, ...], ir.Value] = {}  # by the sizes of the summed axes
        for node in list(graph):
            count = _summed_rows(node)
            if count:
                _multiply_rows(node, count, ones, names)
    return model


def _summed_rows(node: ir.Node) -> int:
    """How many leading axes a ReduceSum of floats removes; 0 for any other node."""
    if node.op_type != "ReduceSum" or node.domain != "" or attribute(node, "keepdims", 1):
        return 0
    x, axes, shape = node.inputs[0], ints(input_of(node, 1)), dims(node.inputs[0])
    if x is None or x.dtype != ir.DataType.FLOAT or not axes or shape is None or None in shape:
        return 0
    found = sorted(axis % len(shape) for axis in axes)
    rest = shape[len(found) :]
    if found != list(range(len(found))) or not rest or 0 in shape:
        return 0
    return len(found) if sum(not isinstance(size, int) for size in rest) <= 1 else 0


def _multiply_rows(
    node: ir.Node, count: int, ones: dict[tuple[Dim, ...], ir.Value], names: Names
) -> None:
    x, shape = node.inputs[0], dims(node.inputs[0])
    assert x is not None and shape is not None and node.graph is not None
    op, lead, rest = Ops(), shape[:count], shape[count:]
    rows = x if len(shape) == 2 else op.Flatten(x, axis=count)
    if lead not in ones:
        if all(isinstance(size, int) for size in lead):
            total = int(np.prod([size for size in lead if isinstance(size, int)]))
            ones[lead] = op.constant(np.ones(total, np.float32))
        else:
            ones[lead] = op.Expand(np.ones(1, np.float32), op.Shape(rows, start=0, end=1))
    total_row = op.MatMul(ones[lead], rows)
    if len(rest) > 1:
        sizes = [size if isinstance(size, int) else -1 for size in rest]
        total_row = op.Reshape(total_row, sizes)
    replace(node, [total_row], op, names)


# -- the cross entropy -----------------------------------------------------------------------------


def share_exponentials(model: ir.Model) -> ir.Model:
    """Compute one exponential for a cross entropy and the softmax that its gradient needs.

    e = exp(x - max), s = sum(e): the loss is log s - (x - max)[label], the softmax e / s.
    """
    names = Names(model)
    for node in list(model.graph):
        if (
            node.op_type == "SoftmaxCrossEntropyLoss"
            and node.domain == ""
            and _feeds_exponentials(node)
        ):
            _expand_cross_entropy(node, names)
    return model


def _feeds_exponentials(node: ir.Node) -> bool:
    """Whether it is of float32, and only Exp nodes read its second output."""
    x = node.inputs[0]
    if len(node.outputs) < 2 or x is None or x.dtype != ir.DataType.FLOAT:
        return False
    readers = [user for user, _ in node.outputs[1].uses()]
    if not readers or node.outputs[1].is_graph_output():
        return False
    return all(
        (user.op_type, user.domain, user.graph) == ("Exp", "", node.graph) for user in readers
    )


def _expand_cross_entropy(node: ir.Node, names: Names) -> None:
    x, (loss, log_prob), graph, op = node.inputs[0], node.outputs[:2], node.graph, Ops()
    assert graph is not None
    shifted = op.Sub(x, op.ReduceMax(x, [1], keepdims=1))
    e = op.Exp(shifted)
    total = op.ReduceSum(e, [1], keepdims=1)
    labels, weight = _labels_and_weights(op, node)
    picked = op.GatherElements(shifted, op.Unsqueeze(labels, [1]), axis=1)
    each = op.Squeeze(op.Sub(op.Log(total), picked), [1])
    result = _reduced(op, each, weight, attribute(node, "reduction", "mean"))
    shares = op.Reciprocal(total)
    softmax = [(exp, op.Mul(e, shares)) for exp, _ in log_prob.uses()]
    insert_made_nodes(node, op, names)
    for exp, product in softmax:
        substitute(exp.outputs[0], product, names)
        remove_node(exp, graph)
        _scale_shares(product, names)
    substitute(loss, result, names)
    remove_node(node, graph)


def _labels_and_weights(op: Ops, node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Labels without ignore_index, and the weight of each; None where all weigh the same."""
    labels, weights = node.inputs[1], input_of(node, 2)
    ignored = attribute(node, "ignore_index")
    assert labels is not None
    if ignored is None:
        return labels, None if weights is None else op.Gather(weights, labels, axis=0)
    kept = op.Not(op.Equal(labels, like(ignored, labels)))
    labels = op.Where(kept, labels, like(0, labels))
    if weights is None:
        return labels, op.Cast(kept, to=int(ir.DataType.FLOAT))
    return labels, op.Where(kept, op.Gather(weights, labels, axis=0), np.float32(0))


def _reduced(op: Ops, each: ir.Value, weight: ir.Value | None, reduction: str) -> ir.Value:
    if weight is not None:
        each = op.Mul(each, weight)
    if reduction == "none":
        return each
    if reduction == "mean" and weight is None:
        return op.ReduceMean(each, keepdims=0)
    total = op.ReduceSum(each, keepdims=0)
    return total if reduction == "sum" else op.Div(total, op.ReduceSum(weight, keepdims=0))


def _scale_shares(softmax: ir.Value, names: Names) -> None:
    """(softmax - one hot) c = e (c / s) - c one hot: c times the small factor, not the product."""
    product, scatter = made_by(softmax, "Mul"), _only_reader(softmax, "ScatterElements")
    scale = None if scatter is None else _only_reader(scatter.outputs[0], "Mul")
    if product is None or scatter is None or scale is None:
        return
    e, shares = product.inputs
    c = scale.inputs[1]
    if scale.inputs[0] is not scatter.outputs[0] or not (rank(c) == 0 or _is_column(c, scatter)):
        return
    op = Ops()
    step = op.Mul(scatter.inputs[2], c)
    scaled = op.Mul(e, op.Mul(shares, c))
    y = op.ScatterElements(scaled, scatter.inputs[1], step, **scatter.attributes)
    replace(scale, [y], op, names)


def _is_column(c: ir.Value | None, scatter: ir.Node) -> bool:
    """Whether a factor has one number for each label: the shape of the scatter's indices."""
    shape = dims(c)
    return shape is not None and shape == dims(scatter.inputs[1]) and None not in shape


def _only_reader(value: ir.Value, operator: str) -> ir.Node | None:
    if not reads_once(value):
        return None
    ((reader, _),) = value.uses()
    return reader if reader.op_type == operator and reader.domain == "" else None


def add_in_parts(model: ir.Model) -> ir.Model:
    """Write sums of many numbers as sums of the sums of parts, which are exact to rounding."""
    rewrite(model, long_sums.rule)
    return model


def _sequence(rewrite_nodes: Callable[[ir.Model], ir.Model]) -> PassSequence:
    return PassSequence(
        "for onnxruntime",
        (
            upgrade_opset,
            fill_default_attributes,
            share_exponentials,
            add_in_parts,
            rewrite_nodes,
            share_initializers,
            share_expressions,
            drop_unused,
            sum_rows_by_product,
            fill_default_attributes,
            infer_missing,
            share_expressions,
            drop_unused,
        ),
    )


_FASTER_FORMS = {ANY: _sequence(rewrite_with_gradients), AVX512: _sequence(rewrite_for_avx512)}
