"""Two graphs are the same if their nodes are, whatever the names and the order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx_ir as ir


def structure(model: ir.Model) -> tuple[Counter[Any], list[Any]]:
    """Every node with all that it is computed from, and the same of every output."""
    graph = model.graph
    known: dict[ir.Value | None, Any] = {None: None}
    for value in graph.inputs:
        known[value] = hash(("input", value.name))
    for value in graph.initializers.values():
        if value not in known:
            tensor = value.const_value
            assert tensor is not None
            known[value] = hash((tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes()))
    nodes: Counter[Any] = Counter()
    for node in graph:
        attributes = tuple(sorted((n, str(a.value)) for n, a in node.attributes.items()))
        inputs = tuple(known[value] for value in node.inputs)
        key = hash((node.domain, node.op_type, attributes, inputs))
        nodes[key] += 1
        for index, value in enumerate(node.outputs):
            known[value] = hash((key, index))
    return nodes, [known[value] for value in graph.outputs]
