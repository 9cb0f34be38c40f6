"""Attention, however an exporter wrote it, recognised as such before it is differentiated."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx_ir as ir

from onward.graph.shapes.fast import size_added_axes
from onward.graph.shapes.infer import infer_shapes
from onward.passes.attention_calls import last_row, outline_attention, shared_heads
from onward.passes.masks import MaskReader
from onward.passes.pipelines import SETTLE
from onward.passes.rewrite import Ops, Replacement, Rules, rewrite
from onward.passes.value_facts import Dim, attribute, dims, input_of, rank


def recognise_composites(model: ir.Model, parameters: Collection[str] = ()) -> ir.Model:
    """Find attention and the meaning of its masks in a prepared model, in place.

    What is written out becomes a call of `onward::Attention` (attention_calls.py). A causal mask
    becomes `is_causal`; one whose queries all see the same keys becomes the one row that says so;
    one that hides nothing goes. Sizes are folded first; `parameters` name the initializers that
    training will change, which stay as they are.
    """
    with _kept_open(model.graph, parameters):
        SETTLE(model)
        if size_added_axes(model):
            infer_shapes(model)
    reader = MaskReader(model, parameters)
    simplify_masks(model, reader)
    share_heads(model, reader)
    outline_attention(model, reader)
    return model


@contextmanager
def _kept_open(graph: ir.Graph, names: Collection[str]) -> Iterator[None]:
    """Let no pass take these initializers for constants."""
    opened = [graph.initializers[name] for name in names if name in graph.initializers]
    opened = [value for value in opened if not value.is_graph_input()]
    graph.inputs.extend(opened)
    try:
        yield
    finally:
        for value in opened:
            graph.inputs.remove(value)


def simplify_masks(model: ir.Model, reader: MaskReader) -> int:
    """Attention(q, k, v, mask) -> Attention(q, k, v, last row of mask, is_causal=1), or less."""
    rules = Rules()

    @rules("Attention")
    def _mask(op: Ops, node: ir.Node) -> Replacement:
        q, k, v, mask = (input_of(node, place) for place in range(4))
        if mask is None or any(input_of(node, place) is not None for place in (4, 5, 6)):
            return None  # with keys of the past, queries do not begin at the first one
        if node.graph is not model.graph or rank(q) not in (3, 4) or rank(k) != rank(q):
            return None
        meaning = reader.read(mask, _length(q), _length(k))
        if meaning is None:
            return None
        row = last_row(op, mask) if meaning.padded else None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        attributes["is_causal"] = int(meaning.causal or attribute(node, "is_causal", 0))
        return op.many("Attention", len(node.outputs), q, k, v, row, **attributes)

    return rewrite(model, rules)


def share_heads(model: ir.Model, reader: MaskReader) -> int:
    """Attention(q, repeated k, repeated v) -> Attention(q, k, v), which groups heads itself."""
    rules = Rules()

    @rules("Attention")
    def _heads(op: Ops, node: ir.Node) -> Replacement:
        q, k, v, *others = node.inputs
        past = any(input_of(node, place) is not None for place in (4, 5))
        if q is None or k is None or v is None or past or node.graph is not model.graph:
            return None
        if any(rank(x) != 4 for x in (q, k, v)) or any(y.name for y in node.outputs[1:]):
            return None
        found = shared_heads(q, k, v, reader)
        if found is None:
            return None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        _, k, v = found
        return op.many("Attention", len(node.outputs), q, k, v, *others, **attributes)

    return rewrite(model, rules)


def _length(x: ir.Value | None) -> Dim:
    """How many queries or keys there are: x is (batch, length, hidden) or (..., length, size)"""
    return (dims(x) or ())[-2]
