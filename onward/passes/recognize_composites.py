"""Recognise attention in a model, however an exporter wrote it, before it is differentiated."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.shapes.fast import size_added_axes
from onward.graph.shapes.infer import infer_shapes
from onward.passes.attention_calls import last_row, outline_attention, shared_heads
from onward.passes.fold import as_graph_inputs
from onward.passes.masks import MaskReader
from onward.passes.pipelines import FOLD_SHAPES
from onward.passes.rewrite import Ops, Replacement, Rules, rewrite
from onward.passes.value_facts import Dim, attribute, dims, input_of, rank


def recognise_composites(model: ir.Model, parameters: Collection[str] = ()) -> ir.Model:
    """Find attention and the meaning of its masks in a prepared model, in place.

    Attention that is written out becomes a call of `onward::Attention` (attention_calls.py). A
    causal mask becomes `is_causal`; a mask with equal rows becomes one row; a mask that hides
    nothing is dropped. Sizes are folded first; `parameters` name the initializers that training
    will change, which are not taken for constants.
    """
    with as_graph_inputs(model.graph, parameters):
        FOLD_SHAPES(model)
        if size_added_axes(model):
            infer_shapes(model)
    reader = MaskReader(model, parameters)
    simplify_masks(model, reader)
    share_heads(model, reader)
    outline_attention(model, reader)
    return model


def simplify_masks(model: ir.Model, reader: MaskReader) -> int:
    """Attention(q, k, v, mask) -> Attention(q, k, v, last row of mask, is_causal=1), or less."""
    rules = Rules()

    @rules("Attention")
    def _mask(op: Ops, node: ir.Node) -> Replacement:
        q, k, v, mask = (input_of(node, place) for place in range(4))
        if mask is None or any(input_of(node, place) is not None for place in (4, 5, 6)):
            return None  # with past keys, the first query is not at the first key
        if node.graph is not model.graph or rank(q) not in (3, 4) or rank(k) != rank(q):
            return None
        meaning = reader.read(mask, _length(q), _length(k))
        if meaning is None:
            return None
        row = last_row(op, mask) if meaning.padded else None
        causal = int(meaning.causal or attribute(node, "is_causal", 0))
        attributes = {**node.attributes, "is_causal": causal}
        return op.many("Attention", len(node.outputs), q, k, v, row, **attributes)

    return rewrite(model, rules)


def share_heads(model: ir.Model, reader: MaskReader) -> int:
    """Attention(q, repeated k, repeated v) -> Attention(q, k, v), which supports grouped heads."""
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
        _, k, v = found
        return op.many("Attention", len(node.outputs), q, k, v, *others, **node.attributes)

    return rewrite(model, rules)


def _length(x: ir.Value | None) -> Dim:
    """The number of queries or keys: x is (batch, length, hidden) or (..., length, size)"""
    return (dims(x) or ())[-2]
