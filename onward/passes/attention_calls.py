"""Replace softmax(q k^T s + mask) v, written out by an exporter, by a call of `onward::Attention`.

    scores = MatMul(Mul(q, s), Transpose(k))
    p = Softmax(Add(scores, mask))          ->      y = onward::Attention(q, k, v, mask)
    y = MatMul(p, v)

The call has the inputs and attributes of the standard Attention (four axes each), then all other
values that its body reads; its body is the exporter's nodes. An engine without the kernel inlines
them. Key heads that were repeated for groups of query heads are passed without the repetition.
Nodes that may compute something else, or whose intermediate values are used elsewhere, stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.passes.composites import DOMAIN, VERSION, outline
from onward.passes.fuse.attention import (
    Scores,
    build_where_mask,
    find_product,
    find_softmax,
    remove_scale,
    same_heads,
)
from onward.passes.masks import MaskReader
from onward.passes.rewrite import Names, Ops, insert_made_nodes
from onward.passes.simplify.consecutive_nodes import order_of
from onward.passes.value_facts import (
    Array,
    Dim,
    dims,
    fits_within,
    made_by,
    only_inside,
    rank,
)

NAME = "Attention"

_PLACES = 7  # inputs of the standard Attention
_SWAP = [0, 1, 3, 2]
_SHARING = ("Reshape", "Expand", "Identity", "Slice", "Unsqueeze")  # how heads are repeated
_TURNING = ("Reshape", "Transpose")  # ways to swap the last two axes


@dataclass
class _Match:
    """q, k and v of four axes, their scores, and the nodes that the call replaces."""

    root: ir.Node
    q: ir.Value
    k: ir.Value
    v: ir.Value
    scores: Scores
    nodes: list[ir.Node] = field(default_factory=list)
    mask: ir.Value | None = None
    causal: bool = False


class _Draft:
    """Tentative changes of the graph: new nodes and replaced values, kept or rolled back."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._nodes: list[ir.Node] = []
        self._constants: list[ir.Value] = []
        self._replaced: list[tuple[ir.Value, ir.Value]] = []

    def insert(self, before: ir.Node, op: Ops) -> None:
        insert_made_nodes(before, op, self._names)
        self._nodes += op.nodes
        self._constants += op.constants

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Replace a value in all of its readers."""
        for user, index in list(old.uses()):
            user.replace_input_with(index, new)
        self._replaced.append((old, new))

    def accept(self) -> None:
        for old, _ in self._replaced:
            node = old.producer()
            if node is not None and node.graph is not None and not old.is_graph_output():
                node.graph.remove(node, safe=True)

    def roll_back(self) -> None:
        for old, new in reversed(self._replaced):
            new.replace_all_uses_with(old)
        for node in reversed(self._nodes):
            assert node.graph is not None
            node.graph.remove(node, safe=True)
        for value in self._constants:
            if value.graph is not None:
                del value.graph.initializers[str(value.name)]


def outline_attention(model: ir.Model, reader: MaskReader) -> int:
    """Replace every attention that is written out in the model's graph by a call; how many."""
    count, names = 0, Names(model)
    for node in list(model.graph):
        if node.graph is None or node.op_type != "MatMul" or node.domain:
            continue
        draft = _Draft(names)
        match = _find(draft, node, reader)
        if match is None:
            draft.roll_back()
            continue
        draft.accept()
        _outline(model, match)
        count += 1
    if count:
        model.opset_imports[DOMAIN] = VERSION
    return count


def _outline(model: ir.Model, match: _Match) -> None:
    inside = {*match.nodes, match.root}
    attributes: dict[str, Any] = {
        "scale": float(match.scores.scale),
        "is_causal": int(match.causal),
        "softcap": 0.0,
        "qk_matmul_output_mode": 0,
    }
    if match.scores.precision is not None:
        attributes["softmax_precision"] = match.scores.precision
    given = [match.q, match.k, match.v, match.mask]
    outline(
        model.functions,
        model.opset_imports,
        [node for node in model.graph if node in inside],
        NAME,
        [*given, *[None] * (_PLACES - len(given))],
        [match.root.outputs[0]],
        attributes,
    )


def _find(draft: _Draft, root: ir.Node, reader: MaskReader) -> _Match | None:
    weights, v = root.inputs
    scores = Scores()
    if v is None or v.dtype not in FLOATS or rank(v) != 4:
        return None
    softmax = find_softmax(weights, scores)
    product = None if softmax is None else find_product(softmax.inputs[0], scores)
    if product is None:
        return None
    q = remove_scale(product.inputs[0], scores)
    if q is None or q.dtype != v.dtype or rank(q) != 4 or not same_heads(dims(q), dims(v)):
        return None
    k = _key(draft, product, scores, q, reader)
    if k is None:
        return None
    match = _Match(root, q, k, v, scores, scores.nodes)
    if not only_inside(match.nodes, root):
        return None
    _drop_repeated_heads(match, reader)
    fits = same_heads(dims(match.k), dims(match.v))
    return match if fits and _read_mask(draft, match, reader) else None


# -- keys and values -------------------------------------------------------------------------------


def _key(
    draft: _Draft, product: ir.Node, scores: Scores, q: ir.Value, reader: MaskReader
) -> ir.Value | None:
    """k (batch, heads, length, size), of which `product` reads the transpose."""
    value = remove_scale(product.inputs[1], scores)
    turn = made_by(value, "Transpose")
    order = None if turn is None else order_of(turn)
    if turn is not None and order is not None and len(order) == 4:
        if order != _SWAP:
            turn = _split_transpose(draft, turn, order)
        scores.nodes.append(turn)
        return remove_scale(turn.inputs[0], scores)
    return _transposed_by_reshapes(value, scores, q, reader)


def _split_transpose(draft: _Draft, turn: ir.Node, order: list[int]) -> ir.Node:
    """Split a Transpose in two: to (batch, heads, length, size), then of the last two axes."""
    *batch, second, last = order
    op, old = Ops(), turn.outputs[0]
    keys = op.Transpose(turn.inputs[0], perm=[*batch, last, second])
    turned = op.Transpose(keys, perm=_SWAP)
    known = dims(old)
    keys.type = turned.type = old.type
    if known is not None:
        keys.shape, turned.shape = ir.Shape([known[i] for i in _SWAP]), old.shape
    draft.insert(turn, op)
    draft.replace(old, turned)
    return op.nodes[1]


def _transposed_by_reshapes(
    value: ir.Value | None, scores: Scores, q: ir.Value, reader: MaskReader
) -> ir.Value | None:
    """k where its transpose is written in three axes, (batch * heads, length, size), or in five."""
    nodes, source = _chain(value, _TURNING + _SHARING)
    known, heads = dims(source), (dims(q) or (None, None))[1]
    if value is None or source is None or known is None or not isinstance(heads, int):
        return None
    groups = heads // known[1] if isinstance(known[1], int) and known[1] else 1
    if not reader.is_always(value, source, lambda x: np.swapaxes(np.repeat(x, groups, 1), 2, 3)):
        return None
    scores.nodes += nodes
    return source if groups > 1 else remove_scale(source, scores)


def _drop_repeated_heads(match: _Match, reader: MaskReader) -> None:
    """Replace k and v by the heads that were repeated for groups of query heads."""
    if same_heads(dims(match.q), dims(match.k)):
        found = shared_heads(match.q, match.k, match.v, reader)
    else:  # k is already without the repetition
        values = _repeated(match.v, match.q, reader)
        found = None if values is None else (values[0], match.k, values[1])
    if found is not None:
        repeats, k, v = found
        nodes = [*match.nodes, *repeats]
        if only_inside(nodes, match.root):
            match.nodes, match.k, match.v = nodes, k, v


def shared_heads(
    q: ir.Value, k: ir.Value, v: ir.Value, reader: MaskReader
) -> tuple[list[ir.Node], ir.Value, ir.Value] | None:
    """The nodes that repeat key and value heads for groups of query heads, and k and v before."""
    keys, values = _repeated(k, q, reader), _repeated(v, q, reader)
    if keys is None or values is None:
        return None
    if not same_heads(dims(keys[1]), dims(values[1])):
        return None
    return [*keys[0], *values[0]], keys[1], values[1]


def _repeated(
    x: ir.Value, q: ir.Value, reader: MaskReader
) -> tuple[list[ir.Node], ir.Value] | None:
    """The nodes that repeat heads to make x, and the value before them."""
    chain, source = _chain(x, _SHARING)
    known, heads = dims(source), (dims(q) or (None, None))[1]
    if source is None or known is None or len(known) != 4:
        return None
    shared = known[1]
    if not isinstance(shared, int) or not isinstance(heads, int) or not 0 < shared < heads:
        return None

    def repeat(array: Array) -> Array:
        return np.repeat(array, heads // shared, axis=1)

    return (chain, source) if reader.is_always(x, source, repeat) else None


def _chain(value: ir.Value | None, kinds: tuple[str, ...]) -> tuple[list[ir.Node], ir.Value | None]:
    """The nodes before a value that only move elements, back to a value of four axes."""
    nodes: list[ir.Node] = []
    while (node := made_by(value, *kinds)) is not None:
        nodes.append(node)
        value = node.inputs[0]
        if rank(value) == 4 and node.op_type in ("Unsqueeze", "Reshape"):
            return nodes, value
    return nodes, None


# -- masks -----------------------------------------------------------------------------------------


def _read_mask(draft: _Draft, match: _Match, reader: MaskReader) -> bool:
    """Find the mask input that Attention needs for these scores; False if it cannot be used."""
    mask = match.scores.mask
    if match.scores.hidden is not None:
        op = Ops()
        mask = build_where_mask(op, *match.scores.hidden, match.q)
        draft.insert(match.root, op)
    if mask is None:
        return True
    if mask.dtype not in (ir.DataType.BOOL, match.q.dtype):
        return False
    queries, keys = _length(match.q), _length(match.k)
    meaning = reader.read(mask, queries, keys)
    if meaning is not None and not meaning.padded:  # every query sees something
        match.causal = meaning.causal
        return True
    # a query that sees no key: NaN by the softmax, 0 by the kernels and by a guard against NaN
    is_caught = any(node.op_type == "IsNaN" for node in match.nodes)
    is_finite = mask.dtype != ir.DataType.BOOL and reader.spans(mask, queries, keys)
    if not is_caught and not is_finite:
        return False
    if meaning is None:
        match.mask = mask
        product = next(node for node in match.nodes if node.op_type == "MatMul")
        return is_finite or fits_within(mask, product.outputs[0])
    op = Ops()
    match.causal, match.mask = meaning.causal, last_row(op, mask)
    draft.insert(match.root, op)
    return True


def last_row(op: Ops, mask: ir.Value) -> ir.Value:
    """(..., queries, keys) -> (..., 1, keys)"""
    row = op.Slice(mask, [-1], [np.iinfo(np.int64).max], [-2])
    row.type = mask.type
    known = dims(mask)
    row.shape = None if known is None else ir.Shape([*known[:-2], 1, known[-1]])
    return row


def _length(x: ir.Value) -> Dim:
    return (dims(x) or (None, None))[-2]
