"""Infer the shapes of values that loops carry, about which ONNX infers nothing.

Assume that each carried value keeps the shape it starts with, and test whether the body returns
that shape: sizes that it does not return are free, and the rest is tested again. What is left
holds for every trip, by induction.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.operators import LOOPS
from onward.graph.scopes import walk

Sizes = tuple[int | str | None, ...]


def first_carried_index(node: ir.Node) -> int:
    """The index of the first carried value among the inputs of a node, and of its body.

    A Loop has two other inputs before: the trip count and the condition.
    """
    return 2 if node.op_type == "Loop" and node.domain == "" else 0


def _matches_body(node: ir.Node) -> bool:
    """Whether the node has an input for each of its body's; Scans of opset 8 have more."""
    return "body" in node.attributes and len(node.inputs) == len(
        node.attributes["body"].as_graph().inputs
    )


class LoopShapes:
    """What is assumed about the inputs of bodies and the outputs of Loops."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._named = {
            size.value
            for value in model.graph.inputs
            for size in value.shape or ()
            if not isinstance(size, int)
        }
        self._assumed: dict[ir.Value, Sizes] = {}
        self._tested: dict[ir.Value, Sizes] = {}  # the assumptions that shapes were inferred with
        self._free: dict[ir.Value, set[int]] = {}  # axes along which a carried value may change

    def learn(self) -> bool:
        """Derive the assumptions from the inferred shapes; whether any has changed.

        A size that is unknown after the body may be known once other loops are: it is free only
        when nothing else is learnt.
        """
        return self._derive(unknown_is_free=False) or self._derive(unknown_is_free=True)

    def write(self) -> None:
        """Write the assumptions onto the values."""
        for value, sizes in self._assumed.items():
            value.shape = ir.Shape(sizes)

    def _derive(self, *, unknown_is_free: bool) -> bool:
        before, self._assumed = self._assumed, {}
        self._tested = before
        for node in walk(self._model.graph):
            if node.domain == "" and node.op_type in LOOPS and _matches_body(node):
                self._learn_from(node, unknown_is_free)
        return self._assumed != before

    def _learn_from(self, node: ir.Node, unknown_is_free: bool) -> None:
        body, start = node.attributes["body"].as_graph(), first_carried_index(node)
        scanned = node.attributes["num_scan_inputs"].as_int() if node.op_type == "Scan" else 0
        states = len(node.inputs) - start - scanned
        for i in range(states):
            inner, outer = body.inputs[start + i], node.inputs[start + i]
            if outer is None or outer.shape is None:
                continue
            self._compare(inner, body.outputs[start // 2 + i], unknown_is_free)
            self._assumed[inner] = self._sizes(inner, outer)
            if i < len(node.outputs) and node.outputs[i].name:
                self._assumed[node.outputs[i]] = self._assumed[inner]
        axes = node.attributes.get("scan_input_axes")
        for i in range(scanned):
            inner, outer = body.inputs[states + i], node.inputs[states + i]
            if outer is not None and outer.shape is not None and len(outer.shape):
                sizes = list(self._sizes(inner, outer))
                del sizes[axes.as_ints()[i] if axes is not None else 0]
                self._assumed[inner] = tuple(sizes)

    def _compare(self, inner: ir.Value, result: ir.Value, unknown_is_free: bool) -> None:
        """Free the sizes that a body changes."""
        if inner not in self._tested or inner.shape is None:  # nothing was assumed yet
            return
        free = self._free.setdefault(inner, set())
        if result.shape is None or len(result.shape) != len(inner.shape):
            if unknown_is_free or result.shape is not None:
                free.update(range(len(inner.shape)))
            return
        for axis, (ours, theirs) in enumerate(zip(inner.shape, result.shape)):
            if ours != theirs and (unknown_is_free or self._is_known(theirs)):
                free.add(axis)

    def _is_known(self, size: int | ir.SymbolicDim) -> bool:
        return isinstance(size, int) or size.value in self._named

    def _sizes(self, inner: ir.Value, outer: ir.Value) -> Sizes:
        """The sizes of a carried value in every trip; an unknown one gets a name."""
        assert outer.shape is not None
        free = self._free.get(inner, set())
        sizes: list[int | str | None] = []
        for axis, size in enumerate(outer.shape):
            known = size if isinstance(size, int) else size.value
            if not self._is_known(size):
                known = f"{inner.name}/{axis}"
            sizes.append(None if axis in free else known)
        return tuple(sizes)
