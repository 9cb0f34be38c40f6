"""What is computed or stored twice is computed or stored once."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from onward.graph.operators import is_random
from onward.graph.scopes import graphs_of
from onward.passes.rewrite import Names, substitute, take_out
from onward.passes.value_facts import is_constant

_KNOWN_DOMAINS = frozenset(["", "ai.onnx.ml"])  # operators of others may keep state
_LARGEST_SHARED = 1 << 20  # bytes of an initializer that is worth reading for a comparison
_LARGEST_ATTRIBUTE = 64  # elements of a tensor attribute that is worth comparing


def share_expressions(model: ir.Model) -> ir.Model:
    """Common subexpressions: of equal nodes (operator, inputs, attributes) the first one stays."""
    names = Names(model)
    for graph in graphs_of(model):
        alike: dict[Hashable, list[ir.Node]] = {}  # few nodes read the same: only they are compared
        seen: dict[Hashable, ir.Node] = {}
        for node in graph:
            same = alike.setdefault((node.op_type, *map(id, node.inputs)), [])
            same.append(node)
            if len(same) == 1:
                continue
            for each in same if len(same) == 2 else [node]:
                key = _key(each)
                first = each if key is None else seen.setdefault(key, each)
                if first is not each:
                    for old, new in zip(each.outputs, first.outputs):
                        if old.name:
                            substitute(old, new, names)
                    take_out(each, graph)
    return model


def _key(node: ir.Node) -> Hashable | None:
    if node.domain not in _KNOWN_DOMAINS or is_random(node) or not node.outputs:
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        content = _content(attribute)
        if content is None:
            return None
        attributes.append((name, content))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    outputs = tuple(bool(value.name) for value in node.outputs)
    return node.op_identifier(), inputs, outputs, tuple(attributes)


def _content(attribute: ir.Attr) -> Hashable | None:
    """An attribute as something that can be compared; None where that is not worth it."""
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
    """Of small initializers with equal type, shape and bytes, within one graph, one stays."""
    for graph in graphs_of(model):
        alike: dict[Hashable, list[ir.Value]] = {}
        for value in graph.initializers.values():
            tensor = value.const_value
            if not is_constant(value) or tensor is None or value.is_graph_output():
                continue
            if tensor.dtype != ir.DataType.STRING and tensor.nbytes <= _LARGEST_SHARED:
                alike.setdefault((tensor.dtype, tuple(tensor.shape)), []).append(value)
        for values in alike.values():
            first: dict[bytes, ir.Value] = {}
            for value in values if len(values) > 1 else ():
                kept = first.setdefault(_bytes(value), value)
                if kept is not value:
                    value.replace_all_uses_with(kept)
                    del graph.initializers[value.name]  # type: ignore[arg-type]
    return model


def _bytes(value: ir.Value) -> bytes:
    assert value.const_value is not None
    return np.ascontiguousarray(value.const_value.numpy()).tobytes()
