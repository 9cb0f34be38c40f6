"""Axes of fused attention: whole heads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Axes, known_sizes, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.rules.reading import MICROSOFT, given
from onward.graph.operator_table import OpTable

ATTENTION = OpTable()
_QUERY, _KEY, _VALUE, _MASK = 0, 1, 2, 3


@ATTENTION("Attention")
def _attention(node: ir.Node, axes: Axes) -> None:
    """Heads of query, key, value and result go together; a key's with the queries that share it."""
    query, key, value = node.inputs[:3]
    if query is None or key is None or value is None or not node.outputs[0].name:
        return
    queries = node.attributes.get_int("q_num_heads", 0) or axes.size((query, 1)) or 0
    keys = node.attributes.get_int("kv_num_heads", 0) or axes.size((key, 1)) or 0
    if rank(query) not in (3, 4) or not queries or not keys or queries % keys:
        return
    lead = _tie_heads(axes, key, keys, None, keys)
    for x, heads in ((value, keys), (query, queries), (node.outputs[0], queries)):
        _tie_heads(axes, x, heads, lead, keys)
    mask = given(node, _MASK)
    if mask is not None and rank(mask) == 4 and (known_sizes(mask) or ())[1] == queries:
        _tie_heads(axes, mask, queries, lead, keys)
    for state, heads in ((given(node, 4), keys), (given(node, 5), keys)):
        if state is not None:
            _tie_heads(axes, state, heads, lead, keys)
    for state, heads in zip(node.outputs[1:], (keys, keys, queries), strict=False):
        if state.name:
            _tie_heads(axes, state, heads, lead, keys)


def _tie_heads(
    axes: Axes, x: ir.Value, heads: int, lead: tuple[ir.Value, int, int] | None, keys: int
) -> tuple[ir.Value, int, int] | None:
    """Tie the positions of each head of x with those of the lead's head that it reads.

    Returns x as a lead: its axis and the positions of a head.
    """
    axis = 1 if rank(x) == 4 else 2
    size = axes.size((x, axis)) if rank(x) in (3, 4) else None
    if size is None or size % heads:
        if lead is not None:
            axes.pin(lead[:2])
        return None
    width = size // heads
    places = np.arange(size)
    own = places // width // (heads // keys)  # the key's head
    if lead is None:
        axes.tie_all((x, axis), own)
        return x, axis, width
    axes.tie_positions((x, axis), places, lead[:2], own * lead[2])
    return x, axis, width


@CUTS("Attention")
def _cut_attention(node: ir.Node, cut: Cut) -> None:
    for place, name in ((_QUERY, "q_num_heads"), (_KEY, "kv_num_heads")):
        x, heads = node.inputs[place], node.attributes.get_int(name, 0)
        kept = cut.kept(x, 2) if heads and rank(x) == 3 else None
        if kept is not None:
            cut.set_attribute(node, name, int(kept.sum()) * heads // len(kept))


@ATTENTION("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(node: ir.Node, axes: Axes) -> None:
    """Only query, key and value of three axes and a mask without heads; all else is pinned."""
    heads = node.attributes.get_int("num_heads", 0)
    query, key, value = (given(node, place) for place in range(3))
    others = [given(node, place) for place in (3, 5, 6, 7, 8, 9)]
    if query is None or key is None or value is None or not heads or any(others):
        return
    if any(rank(x) != 3 for x in (query, key, value)) or len(node.outputs) > 1:
        return
    lead = _tie_heads(axes, key, heads, None, heads)
    for x in (query, value, node.outputs[0]):
        _tie_heads(axes, x, heads, lead, heads)


@CUTS("MultiHeadAttention", domain=MICROSOFT)
def _cut_multi_head(node: ir.Node, cut: Cut) -> None:
    query = node.inputs[0]
    kept = cut.kept(query, 2)
    if kept is not None:
        heads = node.attributes.get_int("num_heads", 1)
        cut.set_attribute(node, "num_heads", int(kept.sum()) * heads // len(kept))
