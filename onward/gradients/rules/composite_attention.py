"""Gradients of attention calls that passes/attention_calls.py made from an exporter's nodes.

The gradient is that of the call's body: a copy of its nodes, and their backward pass. If both calls
are inlined, common subexpression elimination merges the copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir

from onward.gradients.backward import backward
from onward.gradients.functions import composite
from onward.gradients.gradient_ops import GradientOps
from onward.gradients.rule import GradientTable, absent
from onward.graph.scopes import reads
from onward.passes.attention_calls import NAME
from onward.passes.composites import DOMAIN

gradient = GradientTable()


@gradient(NAME, domain=DOMAIN)
@absent
@composite("AttentionGrad", inputs=7, outputs=4)
def attention_call(op: GradientOps, node: ir.Node, dy: Any) -> Any:
    """dx of each input x that the body reads"""
    if op.functions is None:
        raise ValueError(
            "function calls are not supported here: inline the functions of domain onward first"
        )
    body = op.functions[node.op_identifier()].graph
    made, y = _copied(op, body, node)
    active = op.active
    with _without_calls(op):
        found = backward(op, made, {y: dy}, [x for x in reads(node) if x in active])
    op.active = active
    y.replace_all_uses_with(node.outputs[0])  # the call has computed it
    return [None if x is None else found.get(x) for x in node.inputs]


def _copied(op: GradientOps, body: ir.Graph, call: ir.Node) -> tuple[list[ir.Node], ir.Value]:
    """Copy the body's nodes into the graph; return them and their output."""
    known: dict[ir.Value | None, ir.Value | None] = {None: None}
    known.update(zip(body.inputs, call.inputs))
    nodes = []
    for node in body:
        copy = ir.Node(
            node.domain,
            node.op_type,
            [known[value] for value in node.inputs],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=op.name(node.op_type),
        )
        for old, new in zip(node.outputs, copy.outputs):
            new.name, new.type, new.shape = op.name(node.op_type), old.type, old.shape
            known[old] = new
        op.graph.append(copy)
        nodes.append(copy)
    y = known[body.outputs[0]]
    assert y is not None
    return nodes, y


@contextmanager
def _without_calls(op: GradientOps) -> Iterator[None]:
    """Add no function calls in this block: a function body contains none."""
    functions, op.functions = op.functions, None
    try:
        yield
    finally:
        op.functions = functions
