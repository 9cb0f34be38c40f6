"""Rules whose gradient some engine has as one kernel: what they write becomes one call.

    @gradient("LayerNormalization")
    @absent
    @composite("LayerNormalizationGrad", inputs=3, outputs=3)
    def layer_normalization(op, node, dy, *statistics): ...

The call is `onward::LayerNormalizationGrad`. Its inputs are those of the forward node, padded to
`inputs` places; then its outputs, padded to `outputs` places; then their gradients, as many; then
whatever else the rule's nodes read. Its attributes are the forward node's, and `wrt`: which of the
forward's inputs the call's outputs are the gradients of. Its body is what the rule wrote.

A rule that must also change the forward graph does so first, and lets only what follows be a call:

    with recorded(op) as nodes:
        gradients = ...
    return as_call(op, "BatchNormalizationGrad", nodes, inputs, attributes, gradients)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import Gradient
from onward.graph.scopes import reads
from onward.passes.composites import outline

WRT = "wrt"


def composite(
    name: str,
    *,
    inputs: int,
    outputs: int = 1,
    unread: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let what a rule writes be one call of a function of domain `onward`.

    With `unread=False`, the call is not given what its body does not read: else it stays in memory
    until the backward.
    """

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(rule)
        def outlined(op: GradientOps, node: ir.Node, *dys: Any) -> Any:
            if not op.outlines:  # nobody keeps calls: the nodes as they are
                return rule(op, node, *dys)
            with recorded(op) as nodes:
                found = rule(op, node, *dys)
            if not nodes:
                return found
            forward = [
                *_padded(node.inputs, inputs),
                *_padded([y if y.name else None for y in node.outputs], outputs),
            ]
            if not unread:
                read = {value for each in nodes for value in reads(each)}
                forward = [value if value in read else None for value in forward]
            given = [*forward, *_padded(dys, outputs)]
            return as_call(op, name, nodes, given, attributes_of(node), found)

        return outlined

    return decorate


@contextmanager
def recorded(op: GradientOps) -> Iterator[list[ir.Node]]:
    """The nodes that are written at the graph's end meanwhile; complete once it is left.

    Composites among them are written out: a body calls nothing. Where calls are not kept at all,
    nothing is recorded.
    """
    nodes: list[ir.Node] = []
    if not op.outlines:
        yield nodes
        return
    last = next(reversed(op.graph), None)
    op.outlines = False
    try:
        with op.separate_sizes():
            yield nodes
    finally:
        op.outlines = True
    nodes += [*takewhile(lambda each: each is not last, reversed(op.graph))][::-1]


def as_call(
    op: GradientOps,
    name: str,
    nodes: Sequence[ir.Node],
    given: Sequence[ir.Value | None],
    attributes: Mapping[str, Any],
    found: Any,
) -> list[Gradient]:
    """The gradients as outputs of one call; those that no new node makes stay as they are.

    What is the gradient of two inputs at once is one output, said to be the first one's.
    """
    gradients: list[Gradient] = [found] if isinstance(found, ir.Value) else list(found or ())
    made = {value for each in nodes for value in each.outputs}
    wrt: dict[ir.Value, int] = {}
    for i, gradient in enumerate(gradients):
        if gradient is not None and gradient in made:
            wrt.setdefault(gradient, i)
    if not op.outlines or not wrt:
        return gradients
    assert op.functions is not None
    results = outline(
        op.functions, op.opsets, nodes, name, given, [*wrt], {**attributes, WRT: [*wrt.values()]}
    )
    instead: dict[Gradient, ir.Value] = dict(zip(wrt, results))
    return [instead.get(gradient, gradient) for gradient in gradients]


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """A node's attributes as plain values."""
    return {key: attribute.value for key, attribute in node.attributes.items()}


def _padded(values: Sequence[Any], size: int) -> list[Any]:
    return [*values[:size], *[None] * (size - len(values))]
