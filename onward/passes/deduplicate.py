"""Merge equal nodes and equal initializers.

onnx-ir has a CommonSubexpressionEliminationPass, too. Ours is used because onnx-ir 1.1 merges two
draws of Bernoulli or of Dropout in training, nodes of unknown domains (which may keep state) and
attributes 0.0 and -0.0; it writes an invalid model where an optional output is missing only from
the first node; and it does not enter subgraphs.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from onward.graph.operators import is_random
from onward.graph.scopes import graphs_of
from onward.passes.rewrite import Names, remove_node, substitute
from onward.passes.value_facts import is_constant

_KNOWN_DOMAINS = frozenset(["", "ai.onnx.ml"])  # operators of other domains may keep state
_LARGEST_INITIALIZER = 1 << 20  # bytes; larger ones are not read for a comparison
_LARGEST_ATTRIBUTE = 64  # elements of a tensor; larger ones are not compared


def share_expressions(model: ir.Model) -> ir.Model:
    """Common subexpression elimination: of equal nodes, in one graph, keep the first.

    Equal nodes have the same operator, inputs, attributes and missing outputs.
    """
    names = Names(model)
    for graph in graphs_of(model):
        # attributes are compared only among nodes with the same operator and inputs: they are few
        candidates: dict[Hashable, list[ir.Node]] = {}
        first_of: dict[Hashable, ir.Node] = {}
        for node in graph:
            group = candidates.setdefault((node.op_type, *map(id, node.inputs)), [])
            group.append(node)
            if len(group) == 1:
                continue
            for each in group if len(group) == 2 else [node]:
                key = _node_key(each)
                first = each if key is None else first_of.setdefault(key, each)
                if first is not each:
                    for old, new in zip(each.outputs, first.outputs):
                        if old.name:
                            substitute(old, new, names)
                    remove_node(each, graph)
    return model


def _node_key(node: ir.Node) -> Hashable | None:
    """What equal nodes have in common; None for a node that is never merged."""
    if node.domain not in _KNOWN_DOMAINS or is_random(node) or not node.outputs:
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        content = _attribute_key(attribute)
        if content is None:
            return None
        attributes.append((name, content))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    outputs = tuple(bool(value.name) for value in node.outputs)
    return node.op_identifier(), inputs, outputs, tuple(attributes)


def _attribute_key(attribute: ir.Attr) -> Hashable | None:
    """A hashable copy of an attribute; None for one that is not compared (large, or a graph)."""
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        if value.size > _LARGEST_ATTRIBUTE or value.dtype == ir.DataType.STRING:
            return None
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, (int, float, str)):
        return repr(value)  # nan equals nan, 0.0 is not -0.0
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, str)) for v in value):
        return repr(tuple(value))
    return None


def share_initializers(model: ir.Model) -> ir.Model:
    """Of small initializers with equal type, shape and bytes, in one graph, keep the first."""
    for graph in graphs_of(model):
        candidates: dict[Hashable, list[ir.Value]] = {}
        for value in graph.initializers.values():
            tensor = value.const_value
            if not is_constant(value) or tensor is None or value.is_graph_output():
                continue
            if tensor.dtype != ir.DataType.STRING and tensor.nbytes <= _LARGEST_INITIALIZER:
                candidates.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(value)
        for values in candidates.values():
            first: dict[bytes, ir.Value] = {}
            for value in values if len(values) > 1 else ():
                kept = first.setdefault(_contents(value), value)
                if kept is not value:
                    value.replace_all_uses_with(kept)
                    del graph.initializers[value.name]  # type: ignore[arg-type]
    return model


def _contents(value: ir.Value) -> bytes:
    assert value.const_value is not None
    return np.ascontiguousarray(value.const_value.numpy()).tobytes()
