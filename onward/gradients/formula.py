"""Derive a gradient rule from a forward formula that is written in other operators.

    @gradient("BiasGelu", domain="com.microsoft")
    @formula
    def bias_gelu(op, node):
        "y = gelu(a + b)"
        return op.Gelu(op.Add(*node.inputs))

For operators that are compositions of others. Nodes that the backward pass does not read are
pruned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import onnx_ir as ir

from onward.gradients.backward import backward
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import Gradients, absent
from onward.graph.scopes import reads
from onward.passes.normalize import fill_defaults


def formula(forward: Callable[..., Any]) -> Callable[..., Gradients]:
    """Turn `(op, node) -> outputs` into a rule; an output that has no gradient may be None."""

    @absent
    @functools.wraps(forward)
    def rule(op: GradientOps, node: ir.Node, *dys: ir.Value | None) -> Gradients:
        before = next(reversed(op.graph), None)
        written = forward(op, node)
        ys = [written] if isinstance(written, ir.Value) else written
        made = [*takewhile(lambda other: other is not before, reversed(op.graph))][::-1]
        for each in made:
            fill_defaults(each, op.opset(each.domain))
        seeds = {y: dy for y, dy in zip(ys, dys) if y is not None and dy is not None}
        for y, dy in seeds.items():
            dy.shape = dy.shape or y.shape  # of an operator whose rank ONNX does not infer
        active = op.active
        found = backward(op, made, seeds, [x for x in reads(node) if x in active])
        op.active = active
        for y, own in zip(ys, node.outputs):
            if y is not None and own.name and y.producer() in made:
                _reuse_output(y, own)
        return found

    rule.forward = forward  # type: ignore[attr-defined]
    return rule


def _reuse_output(y: ir.Value, own: ir.Value) -> None:
    """Read the forward node's output instead of computing it again."""
    if own.type is None or own.shape is None:
        own.type, own.shape = y.type, y.shape
    y.replace_all_uses_with(own)
