"""The protocol of gradient rules: one short function `(op, node, *dys) -> gradient per input`.

    @gradient("Sin")
    def sin(op, node, dy):
        "dx = dy cos(x)"
        (x,) = node.inputs
        return op.Mul(dy, op.Cos(x))

A rule returns one gradient (of the first input), a sequence (None: no gradient flows there), or,
where subgraphs capture values, a mapping from values to gradients. It never asks whether a
gradient is needed: unused nodes are pruned. An unused output has dy = 0, or None for rules
decorated with `@absent`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.graph.operator_table import AbstractOpTable

Gradient = ir.Value | None
Gradients = Gradient | Sequence[Gradient] | Mapping[ir.Value, ir.Value]


class Rule(Protocol):
    """A gradient rule."""

    def __call__(self, op: GradientOps, node: ir.Node, /, *dys: Any) -> Gradients: ...


class NoGradient:
    """The entry of an operator without a gradient, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, op: GradientOps, node: ir.Node, /, *dys: Any) -> Gradients:
        return None


@final
class GradientTable(AbstractOpTable):
    """A table of gradient rules; `gradient.none(reason, ...)` declares operators without one."""

    def none(self, reason: str, *operators: str, domain: str = "") -> None:
        """Declare that these operators have no gradient."""
        self(*operators, domain=domain)(NoGradient(reason))


def broadcasting(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Sum each gradient that a rule returns to the shape of its input."""

    @functools.wraps(rule)
    def summed(op: GradientOps, node: ir.Node, *dys: Any) -> list[Gradient]:
        found = rule(op, node, *dys)
        gradients = [found] if isinstance(found, ir.Value) or found is None else list(found)
        return [
            g if g is None or x is None else op.sum_to(g, x) for g, x in zip(gradients, node.inputs)
        ]

    return summed


def absent(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Pass None instead of zeros to a rule for outputs without a gradient."""
    rule.takes_none = True  # type: ignore[attr-defined]
    return rule
