"""Rules whose gradient some engine has as one kernel: what they write becomes one call.

    @gradient("LayerNormalization")
    @absent
    @composite("LayerNormalizationGrad", inputs=3, outputs=3)
    def layer_normalization(op, node, dy, *statistics): ...

The call is `onward::LayerNormalizationGrad`. Its inputs are those of the forward node, padded to
`inputs` places; then its outputs, padded to `outputs` places; then their gradients, as many; then
whatever else the rule's nodes read. Its attributes are the forward node's, and `wrt`: which of the
forward's inputs the call's outputs are the gradients of. Its body is what the rule wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import onnx_ir as ir

from onward.gradients.ops import GradientOps
from onward.gradients.rule import Gradient
from onward.passes.composites import outline

WRT = "wrt"


def composite(
    name: str, *, inputs: int, outputs: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let what a rule writes be one call of a function of domain `onward`."""

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def outlined(op: GradientOps, node: ir.Node, *dys: Any) -> Any:
            if op.functions is None:  # nobody keeps calls: the nodes as they are
                return rule(op, node, *dys)
            last = next(reversed(op.graph), None)
            with op.own_sizes():
                found = rule(op, node, *dys)
            nodes = list(takewhile(lambda each: each is not last, reversed(op.graph)))[::-1]
            given = [
                *_padded(node.inputs, inputs),
                *_padded([y if y.name else None for y in node.outputs], outputs),
                *_padded(dys, outputs),
            ]
            return _call(op, name, node, nodes, given, found)

        return outlined

    return decorate


def _call(
    op: GradientOps,
    name: str,
    node: ir.Node,
    nodes: Sequence[ir.Node],
    given: Sequence[ir.Value | None],
    found: Any,
) -> Any:
    """The gradients as outputs of one call; those that no new node makes stay as they are."""
    gradients: list[Gradient] = [found] if isinstance(found, ir.Value) else list(found or ())
    made = {value for each in nodes for value in each.outputs}
    wrt = [i for i, g in enumerate(gradients) if g is not None and g in made]
    wanted = list(dict.fromkeys(gradients[i] for i in wrt))
    if not wanted or len(wanted) < len(wrt):  # one value for two inputs: nothing to name
        return found
    assert op.functions is not None
    attributes = {key: attribute.value for key, attribute in node.attributes.items()}
    results = outline(
        op.functions,
        op.opsets,
        nodes,
        name,
        given,
        [g for g in wanted if g is not None],
        {**attributes, WRT: wrt},
    )
    for i, result in zip(wrt, results):
        gradients[i] = result
    return gradients


def _padded(values: Sequence[Any], size: int) -> list[Any]:
    return [*values[:size], *[None] * (size - len(values))]
