"""Decide in which type each node of a graph computes.

Products compute in 16 bits, but for small ones at the end of a model (output_products.py). A node
that follows does so if all activations that it reads have 16 bits; weights and constants do not
count, since they are cast to what the node needs. Then nodes that only move elements change if all
of their readers have 16 bits: their input is cast instead, once for all of its views.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx_ir as ir

from onward.graph.operators import named
from onward.graph.scopes import bodies
from onward.passes.low_types.rounding import KINDS
from onward.passes.low_types.typed_places import Typed
from onward.programs.precision.operator_types import MOVING, Compute, places_of, type_of
from onward.programs.precision.output_products import small_output_products
from onward.programs.precision.precision import Precision

_FILLED = named("Constant ConstantOfShape")  # one number: a constant, whatever its shape


class NodeTypes:
    """The nodes of a graph and its subgraphs that compute in 16 bits.

    Attributes:
        nodes: those nodes, with the inputs and outputs that have 16 bits
        products: how many of them are products
    """

    def __init__(
        self,
        graph: ir.Graph,
        precision: Precision,
        opset: int,
        weights: Iterable[ir.Value],
        narrow: Collection[ir.Value] = (),
    ) -> None:
        self.nodes: dict[ir.Node, Typed] = {}
        self.products = 0
        self._precision, self._opset = precision, opset
        self._narrow = {*narrow}
        self._stays = small_output_products(graph)
        self._constant = {*weights}  # values that depend only on weights and constants
        self._follow(graph)
        self._move_casts(graph)

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value depends only on weights and constants."""
        return value in self._constant

    def _follow(self, graph: ir.Graph) -> None:
        """Decide about the nodes of a graph from the first to the last."""
        self._constant.update(v for v in graph.initializers.values() if not v.is_graph_input())
        for node in graph:
            typed = places_of(node, self._opset, KINDS[self._precision.kind])
            compute = self._type_of(node)
            if typed is not None and self._is_low(node, typed, compute):
                self._add(node, typed)
                self.products += compute is Compute.LOW
            elif self._is_constant(node):
                self._constant.update(node.outputs)
            for body in bodies(node):
                self._follow(body)

    def _type_of(self, node: ir.Node) -> Compute:
        if node in self._stays:
            return Compute.FLOAT32
        return type_of(node, self._precision.float32, promote=self._precision.promote)

    def _is_low(self, node: ir.Node, typed: Typed, compute: Compute) -> bool:
        if compute is not Compute.FOLLOW:
            return compute is Compute.LOW
        read = [node.inputs[place] for place in typed.inputs]
        kinds = {value in self._narrow for value in read if value not in self._constant}
        return True in kinds and (False not in kinds or not self._precision.promote)

    def _is_constant(self, node: ir.Node) -> bool:
        if node.op_type in _FILLED:
            return True
        sizes = node.op_type in MOVING  # their other inputs are sizes and places
        return bool(node.inputs) and all(
            value is None or value in self._constant or (sizes and _is_index(value))
            for value in node.inputs
        )

    def _add(self, node: ir.Node, typed: Typed) -> None:
        self.nodes[node] = typed
        self._narrow.update(node.outputs[place] for place in typed.outputs)

    def _move_casts(self, graph: ir.Graph) -> None:
        """Change nodes that move elements only for 16-bit readers, from the last to the first."""
        for node in reversed(graph):
            for body in bodies(node):
                self._move_casts(body)
            if node in self.nodes or node.op_type not in MOVING or node.domain:
                continue
            typed = places_of(node, self._opset, KINDS[self._precision.kind])
            stays = self._type_of(node) is Compute.FLOAT32
            if typed is not None and not stays and self._has_narrow_readers(node, typed):
                self._add(node, typed)

    def _has_narrow_readers(self, node: ir.Node, typed: Typed) -> bool:
        """Whether the outputs are read, and by nothing but inputs of 16 bits."""
        outputs = [node.outputs[place] for place in typed.outputs]
        if any(value.is_graph_output() for value in outputs):
            return False
        uses = [use for value in outputs for use in value.uses()]
        return bool(uses) and all(
            user in self.nodes and place in self.nodes[user].inputs for user, place in uses
        )


def _is_index(value: ir.Value) -> bool:
    """Whether a value is of integers: where elements are, and how many."""
    return value.dtype is not None and value.dtype.is_integer()
