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
from onward.compress.quantization.half.node_types import Typed, find_types, why_float
from onward.compress.quantization.half.rounding import KINDS, LARGEST, clamp, round_to, why_not
from onward.compress.quantization.plan import NodeFormat, Plan
from onward.graph.operators import named
from onward.graph.scopes import graphs_of
from onward.graph.shapes.infer import infer_shapes
from onward.passes.prune import drop_unused
from onward.passes.rewrite import Names

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
    _Narrowing(copy, kind, {node: typed for node, typed in found if typed is not None}).run()
    drop_unused(copy)
    return infer_shapes(copy)


class _Narrowing:
    """The change of some nodes of a model to 16 bits."""

    def __init__(self, model: ir.Model, kind: str, nodes: Mapping[ir.Node, Typed]) -> None:
        self._kind, self._dtype, self._nodes = kind, KINDS[kind], nodes
        self._names = Names(model)
        self._made = {
            node.outputs[place] for node, typed in nodes.items() for place in typed.outputs
        }
        self._narrow: dict[ir.Value, ir.Value] = {}  # by the float32 value

    def run(self) -> None:
        for node, typed in self._nodes.items():
            for place in typed.inputs:
                value = node.inputs[place]
                if value is not None and value not in self._made:
                    node.replace_input_with(place, self._narrow_form(value))
        for node, typed in self._nodes.items():
            for place in typed.outputs:
                self._widen_for_others(node.outputs[place])

    def _narrow_form(self, value: ir.Value) -> ir.Value:
        """A float32 value in 16 bits: another constant, or a Cast."""
        if value not in self._narrow:
            is_constant = value.is_initializer() and not value.is_graph_input()
            make = self._constant if is_constant else self._cast
            self._narrow[value] = make(value, self._dtype, f"{value.name}_16")
        return self._narrow[value]

    def _constant(self, value: ir.Value, dtype: ir.DataType, wish: str) -> ir.Value:
        assert value.const_value is not None and value.graph is not None
        array = round_to(clamp(value.const_value.numpy(), self._kind), self._kind)
        name = self._names.fresh(wish)
        made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        made.const_value = ir.tensor(np.asarray(array), dtype=dtype, name=name)
        _owner(value).register_initializer(made)
        return made

    def _cast(self, value: ir.Value, dtype: ir.DataType, wish: str) -> ir.Value:
        """A Cast of a value, directly behind the node that makes it."""
        name = self._names.fresh(wish)
        made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(dtype))
        to = ir.AttrInt64("to", int(dtype))
        cast = ir.Node("", "Cast", [value], [to], outputs=[made], name=self._names.fresh("Cast"))
        graph, producer = _owner(value), value.producer()
        if producer is not None:
            graph.insert_after(producer, cast)
        else:
            graph.insert_before(next(iter(graph)), cast)
        return made

    def _widen_for_others(self, value: ir.Value) -> None:
        """Change a value to 16 bits; a Cast gives float32 to those that do not compute so."""
        others = [
            (node, place)
            for node, place in value.uses()
            if node not in self._nodes or place not in self._nodes[node].inputs
        ]
        graph = _owner(value)
        places = [place for place, output in enumerate(graph.outputs) if output is value]
        value.type = ir.TensorType(self._dtype)  # the old one is the original model's, too
        if not others and not places:
            return
        wide = self._cast(value, ir.DataType.FLOAT, f"{value.name}_32")
        for node, place in others:
            node.replace_input_with(place, wide)
        for place in places:
            graph.outputs[place] = wide
        if places:  # the output's name stays
            value.name, wide.name = wide.name, value.name


def _owner(value: ir.Value) -> ir.Graph:
    """The graph that a value belongs to."""
    graph = value.graph
    assert isinstance(graph, ir.Graph)
    return graph
