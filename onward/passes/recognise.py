"""Attention, however an exporter wrote it, recognised as such before it is differentiated."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onward.passes.facts import Dim, attribute, dims, input_of, rank
from onward.passes.masks import MaskReader
from onward.passes.rewrite import Ops, Replacement, Rules, rewrite


def recognise_composites(model: ir.Model, parameters: Collection[str] = ()) -> ir.Model:
    """Find attention and the meaning of its masks in a prepared model, in place.

    A mask of an Attention that is causal becomes `is_causal`; one whose queries all see the same
    keys becomes the one row that says so; one that hides nothing goes. `parameters` name the
    initializers that training will change.
    """
    simplify_masks(model, MaskReader(model, parameters))
    return model


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
        row = _last_row(op, mask) if meaning.padded else None
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        attributes["is_causal"] = int(meaning.causal or attribute(node, "is_causal", 0))
        return op.many("Attention", len(node.outputs), q, k, v, row, **attributes)

    return rewrite(model, rules)


def _length(x: ir.Value | None) -> Dim:
    """How many queries or keys there are: x is (batch, length, hidden) or (..., length, size)"""
    return (dims(x) or ())[-2]


def _last_row(op: Ops, mask: ir.Value) -> ir.Value:
    """(..., queries, keys) -> (..., 1, keys)"""
    row = op.Slice(mask, [-1], [np.iinfo(np.int64).max], [-2])
    row.type = mask.type
    known = dims(mask)
    row.shape = None if known is None else ir.Shape([*known[:-2], 1, known[-1]])
    return row
