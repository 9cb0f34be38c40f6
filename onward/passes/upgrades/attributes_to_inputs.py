"""Upgrade operators of which an attribute became an input, and nothing else changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.operator_table import OpTable
from onward.graph.operators import REDUCTIONS
from onward.passes.rewrite import Ops, Replacement
from onward.passes.value_facts import Array, input_of, like

adapter = OpTable()


def set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    """Set an input; if the node has fewer, the ones in between are omitted."""
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def take(node: ir.Node, name: str, default: Any = None) -> Any:
    """Remove an attribute and return its value."""
    attribute = node.attributes.pop(name, None)
    return default if attribute is None else attribute.value


def typed(op: Ops, number: float, x: ir.Value) -> ir.Value:
    """A scalar constant of x's type, cast at run time if that is unknown."""
    if x.dtype is not None:
        return op.constant(like(number, x))
    return op.CastLike(np.asarray(number, np.float32), x)


def _move(op: Ops, node: ir.Node, names: Sequence[str]) -> None:
    """Move integer attributes, in order, to the inputs after the first."""
    for index, name in enumerate(names, start=1):
        value = take(node, name)
        if value is not None and len(value):
            set_input(node, index, op.constant(_int64(value)))


def _int64(value: Any) -> Array:
    return np.asarray(value, np.int64)


@adapter("Slice", since=10)
def slice_(op: Ops, node: ir.Node) -> Replacement:
    _move(op, node, ["starts", "ends", "axes"])
    return None


@adapter("TopK", since=10)
def top_k(op: Ops, node: ir.Node) -> Replacement:
    set_input(node, 1, op.constant(_int64([take(node, "k")])))
    return None


@adapter("Clip", since=11)
def clip(op: Ops, node: ir.Node) -> Replacement:
    (x,) = node.inputs
    assert x is not None
    for index, name in enumerate(["min", "max"], start=1):
        bound = take(node, name)
        if bound is not None:
            set_input(node, index, typed(op, bound, x))
    return None


@adapter("Pad", since=11)
def pad(op: Ops, node: ir.Node) -> Replacement:
    (x,) = node.inputs
    assert x is not None
    _move(op, node, ["pads"])
    value = take(node, "value", 0.0)
    if value != 0:
        set_input(node, 2, typed(op, value, x))
    return None


@adapter("Dropout", since=12)
def dropout(op: Ops, node: ir.Node) -> Replacement:
    """Without training_mode it stays the identity."""
    set_input(node, 1, op.constant(np.asarray(take(node, "ratio", 0.5), np.float32)))
    return None


@adapter("ReduceSum", "Squeeze", "Unsqueeze", since=13)
@adapter(*(REDUCTIONS - {"ReduceSum"}), since=18)
def axes(op: Ops, node: ir.Node) -> Replacement:
    _move(op, node, ["axes"])
    return None


@adapter("Split", since=13)
def split(op: Ops, node: ir.Node) -> Replacement:
    _move(op, node, ["split"])
    return None


@adapter("Split", since=18)
def split_evenly(op: Ops, node: ir.Node) -> Replacement:
    """An even split needs num_outputs now."""
    if input_of(node, 1) is None:
        node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(node.outputs))
    return None


@adapter("DFT", since=20)
def dft(op: Ops, node: ir.Node) -> Replacement:
    """The default axis was 1; now it is the last but one."""
    set_input(node, 2, op.constant(_int64(take(node, "axis", 1))))
    return None
