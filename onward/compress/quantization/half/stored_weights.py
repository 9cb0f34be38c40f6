"""Store weights in 16 bits; a Cast widens each one, which engines do once, when they load a model.

MatMul(x, w)  ->  MatMul(x, Cast(w16, to=float32))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.half.rounding_error import why_not
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from onward.graph.scopes import graphs_of
from onward.passes.low_types.rounding import KINDS, round_to
from onward.passes.rewrite import Names

_AT_LEAST = 48  # elements; a Cast and its names take about as many bytes as those would save
_FIRST_IR_WITHOUT_INPUTS = 4


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """The weights of a model that may be stored in 16 bits.

    Attributes:
        readers: the nodes that read each weight, by the weight's name
        plan: the format of these nodes
        refused: nodes whose weights stay float32, and why
    """

    readers: Mapping[str, frozenset[str]]
    plan: Plan
    refused: Mapping[str, str]


def find_weights(model: ir.Model, kind: str) -> StoredWeights:
    """The weights whose rounding to 16 bits loses little."""
    readers: dict[str, frozenset[str]] = {}
    refused: dict[str, str] = {}
    for value in _float_weights(model):
        nodes = frozenset(str(node.name) for node, _ in value.uses())
        why = _why_not(value, kind)
        if why:
            refused.update(dict.fromkeys(sorted(nodes), f"{value.name}: {why}"))
        elif nodes:
            readers[str(value.name)] = nodes
    names = {node for nodes in readers.values() for node in nodes}
    ordered = [str(n.name) for graph in graphs_of(model) for n in graph if n.name in names]
    plan = {name: NodeFormat(kind=kind, bits=16) for name in ordered}
    return StoredWeights(readers=readers, plan=plan, refused=refused)


def _float_weights(model: ir.Model) -> list[ir.Value]:
    return [
        value
        for graph in graphs_of(model)
        for value in graph.initializers.values()
        if value.const_value is not None
        and value.const_value.dtype == ir.DataType.FLOAT
        and value.const_value.size >= _AT_LEAST
    ]


def _why_not(value: ir.Value, kind: str) -> str:
    if value.is_graph_input():
        return "a feed may replace it"
    if value.is_graph_output():
        return "it is an output of its graph"
    quantizing = [node.op_type for node, _ in value.uses() if _is_quantized(node)]
    if quantizing:
        return f"it is a scale of {quantizing[0]}"
    assert value.const_value is not None
    return why_not(value.const_value.numpy(), kind)


def _is_quantized(node: ir.Node) -> bool:
    """Whether a node reads scales: QuantizeLinear, DequantizeLinear, QLinearConv, MatMulNBits."""
    name = node.op_type.lower()
    return "quant" in name or "qlinear" in name or "nbits" in name


def write_weights(model: ir.Model, weights: StoredWeights, plan: Plan, kind: str) -> ir.Model:
    """A copy of the model whose weights are stored in 16 bits if the plan has all their readers."""
    copy = model.clone()
    chosen = {name for name, nodes in weights.readers.items() if nodes <= plan.keys()}
    names = Names(copy)
    for graph in graphs_of(copy):
        for name in [name for name in graph.initializers if name in chosen]:
            _narrow(graph, graph.initializers[name], kind, names)
    _forget_shapes(copy)
    copy.ir_version = max(copy.ir_version or 0, _FIRST_IR_WITHOUT_INPUTS)
    return copy


def _forget_shapes(model: ir.Model) -> None:
    """Remove what shape inference finds again: in a small file it is a large part."""
    for graph in graphs_of(model):
        declared = {*graph.inputs, *graph.outputs}
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.initializers.values(), *made):
            if value not in declared:
                value.type = value.shape = None


def _narrow(graph: ir.Graph, value: ir.Value, kind: str, names: Names) -> None:
    """Replace a weight by a narrow one of its name, which a Cast widens."""
    assert value.const_value is not None
    array = np.asarray(round_to(value.const_value.numpy(), kind))
    name = str(value.name)
    wide = ir.Value(name=names.fresh("w"), shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
    cast = ir.Node(
        "", "Cast", [value], [ir.AttrInt64("to", int(ir.DataType.FLOAT))], outputs=[wide]
    )
    for node, index in list(value.uses()):
        if node is not cast:
            node.replace_input_with(index, wide)
    value.const_value = ir.tensor(array, dtype=KINDS[kind], name=name)
    value.type = ir.TensorType(KINDS[kind])  # the old one is the original model's, too
    first = next(iter(graph))
    graph.insert_before(first, cast)
