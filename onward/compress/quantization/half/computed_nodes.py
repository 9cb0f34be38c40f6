"""Compute nodes in 16 bits: a value is cast where one that computes so meets one that does not.

    MatMul(x, w)  ->  Cast(MatMul(Cast(x, to=float16), w16), to=float32)

Neighbours that both compute in 16 bits read each other's values without a Cast. The model's inputs
and outputs keep their types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.compress.quantization.half.node_groups import connected_nodes
from onward.compress.quantization.half.rounding_error import why_not
from onward.compress.quantization.quantization_plan import NodeFormat, Plan
from onward.graph.operators import named
from onward.graph.scopes import graphs_of
from onward.graph.shapes.infer import infer_shapes
from onward.passes.drop_unused import drop_unused
from onward.passes.low_types.narrow_nodes import narrow_nodes
from onward.passes.low_types.rounding import KINDS, LARGEST
from onward.passes.low_types.typed_places import Typed, find_types, why_float

_HEAVY = named("MatMul Gemm Conv ConvTranspose DeformConv Attention")  # worth a Cast
_MASK = 1e30  # a constant beyond this stands for minus infinity: it is clamped


@dataclass(frozen=True, kw_only=True)
class ComputedNodes:
    """The nodes of a model that may compute in 16 bits, and why others may not."""

    plan: Plan
    refused: Mapping[str, str]


def find_nodes(model: ir.Model, kind: str, ranges: Mapping[str, float]) -> ComputedNodes:
    """The nodes that compute in 16 bits without a large loss, subgraphs included."""
    opset, dtype = model.opset_imports.get("", 1), KINDS[kind]
    plan: dict[str, NodeFormat] = {}
    refused: dict[str, str] = {}
    operators: dict[str, str] = {}
    for graph in graphs_of(model):
        for node in graph:
            operators[str(node.name)] = node.op_type
            typed = find_types(node, opset, dtype)
            if typed is None:
                continue
            why = why_float(node) or _why_out_of_range(node, typed, kind, ranges)
            if why:
                refused[str(node.name)] = why
            else:
                plan[str(node.name)] = NodeFormat(kind=kind, bits=16)
    for group in connected_nodes(model, plan, by_values=True):
        if not any(operators[name] in _HEAVY for name in group):
            refused.update(dict.fromkeys(group, "its Casts would cost more than it saves"))
    kept = {name: each for name, each in plan.items() if name not in refused}
    return ComputedNodes(plan=kept, refused=refused)


def _why_out_of_range(node: ir.Node, typed: Typed, kind: str, ranges: Mapping[str, float]) -> str:
    for value in _values(node, typed):
        largest = ranges.get(str(value.name), 0.0)
        if largest > LARGEST[kind]:
            return f"{value.name} reaches {largest:.3g}, beyond {kind}'s {LARGEST[kind]:.6g}"
        if value.const_value is not None and value.is_initializer():
            array = value.const_value.numpy()
            why = "" if _is_mask(array, kind) else why_not(array, kind)
            if why:
                return f"{value.name}: {why}"
    return ""


def _values(node: ir.Node, typed: Typed) -> Iterator[ir.Value]:
    for place in typed.inputs:
        value = node.inputs[place]
        if value is not None:
            yield value
    for place in typed.outputs:
        yield node.outputs[place]


def _is_mask(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], kind: str) -> bool:
    """Whether all numbers that are too large stand for infinity."""
    large = np.abs(array[np.abs(array) > LARGEST[kind]])
    return bool(large.size) and bool((large >= _MASK).all())


def write_nodes(model: ir.Model, plan: Plan, kind: str) -> ir.Model:
    """A copy of the model whose nodes of the plan compute in 16 bits."""
    copy = model.clone()
    opset = copy.opset_imports.get("", 1)
    nodes = [node for graph in graphs_of(copy) for node in graph if node.name in plan]
    found = ((node, find_types(node, opset, KINDS[kind])) for node in nodes)
    narrow_nodes(copy, kind, {node: typed for node, typed in found if typed is not None})
    drop_unused(copy)
    return infer_shapes(copy)
