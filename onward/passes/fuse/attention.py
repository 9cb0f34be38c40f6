"""Fuse softmax(scale q k^T + mask) v into one Attention, which providers run as one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import FLOATS
from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.simplify.consecutive_nodes import order_of
from onward.passes.value_facts import (
    Dim,
    attribute,
    dims,
    is_float,
    like,
    made_by,
    only_inside,
    other_input,
    rank,
    scalar,
)

rule = Rules()


@dataclass
class Scores:
    """What is found of the scores: the scale, the mask and the nodes to replace."""

    scale: float = 1.0
    mask: ir.Value | None = None
    hidden: tuple[ir.Value, float, bool] | None = None  # condition, score, whether true hides
    precision: int | None = None
    nodes: list[ir.Node] = field(default_factory=list)


@rule("MatMul")
def attention(op: Ops, node: ir.Node) -> Replacement:
    """q, k and v of (batch, heads, time, size); the mask is added, or the condition of a Where."""
    weights, v = node.inputs
    if v is None or rank(v) != 4 or v.dtype not in FLOATS:
        return None
    found = Scores()
    softmax = find_softmax(weights, found)
    if softmax is None:
        return None
    product = find_product(softmax.inputs[0], found)
    if product is None:
        return None
    q, k = remove_scale(product.inputs[0], found), _key(product.inputs[1], found)
    if q is None or k is None or q.dtype != v.dtype or rank(q) != 4:
        return None
    source, order = k
    known = dims(source)
    if not same_heads(dims(q), known and [known[axis] for axis in order], dims(v)):
        return None
    if not _mask_fits(found, product.outputs[0]) or not only_inside(found.nodes, node):
        return None
    keys = op.Transpose(source, perm=order) if order != [0, 1, 2, 3] else source
    return op.Attention(
        q,
        keys,
        v,
        _mask(op, found, q),
        scale=found.scale,
        softmax_precision=found.precision,
    )


def same_heads(*shapes: Sequence[Dim] | None) -> bool:
    """Whether shapes of (batch, heads, ...) have the same known batch and heads.

    MatMul broadcasts them, Attention does not.
    """
    sizes = {(None, None) if shape is None else tuple(shape[:2]) for shape in shapes}
    return len(sizes) == 1 and None not in next(iter(sizes))


def find_softmax(weights: ir.Value | None, found: Scores) -> ir.Node | None:
    """The softmax over keys that makes the weights, before casts and a guard against NaN."""
    guard = made_by(weights, "Where")
    if guard is not None:
        nan = made_by(guard.inputs[0], "IsNaN")
        if nan is None or scalar(guard.inputs[1]) != 0 or nan.inputs[0] is not guard.inputs[2]:
            return None
        found.nodes += [guard, nan]
        weights = guard.inputs[2]
    narrow = made_by(weights, "Cast")
    if narrow is not None:
        found.nodes.append(narrow)
        weights = narrow.inputs[0]
    softmax = made_by(weights, "Softmax")
    if softmax is None or attribute(softmax, "axis", -1) not in (-1, 3):
        return None
    found.nodes.append(softmax)
    if narrow is not None and weights is not None and weights.dtype is not None:
        found.precision = int(weights.dtype)
    return softmax


def find_product(scores: ir.Value | None, found: Scores) -> ir.Node | None:
    """The matrix product q k^T of the scores; scale, mask and cast are recorded in `found`."""
    while scores is not None:
        node = made_by(scores, "MatMul", "Mul", "Div", "Add", "Where", "Cast")
        if node is None or len(found.nodes) > 12:
            return None
        found.nodes.append(node)
        if node.op_type == "MatMul":
            return node
        if node.op_type == "Cast":
            if found.precision is None or scores.dtype != found.precision:
                return None
            scores = node.inputs[0]
        elif node.op_type in ("Mul", "Div"):
            scores = _unscale(node, found)
        elif found.mask is not None or found.hidden is not None:
            return None  # Attention has one mask
        elif node.op_type == "Add":
            scores = _match_added_mask(node, found)
        else:
            scores = _match_where_mask(node, found)
    return None


def _unscale(node: ir.Node, found: Scores) -> ir.Value | None:
    """x of x * c, c * x or x / c; the factor is multiplied into the scale."""
    a, b = node.inputs
    number = scalar(b)
    if number is not None and number > 0:
        found.scale *= number if node.op_type == "Mul" else 1 / number
        return a
    number = scalar(a)
    if number is not None and number > 0 and node.op_type == "Mul":
        found.scale *= number
        return b
    return None


def _match_added_mask(node: ir.Node, found: Scores) -> ir.Value | None:
    if found.scale != 1.0:
        return None  # the scale would apply to the mask, too
    for value in node.inputs:
        if made_by(value, "MatMul", "Mul", "Div") is not None and _leads_to_product(value):
            found.mask = other_input(node, value) if value is not None else None
            return value
    return None


def _match_where_mask(node: ir.Node, found: Scores) -> ir.Value | None:
    """where(look, scores, -inf), or where(hide, -inf, scores)."""
    condition, kept, other = node.inputs
    hides = scalar(kept) is not None
    kept, other = (other, kept) if hides else (kept, other)
    number = scalar(other)
    if found.scale != 1.0 or condition is None or number is None or number > -1e4:
        return None
    found.hidden = (condition, number, hides)
    return kept


def _leads_to_product(value: ir.Value | None) -> bool:
    for _ in range(3):
        node = made_by(value, "MatMul", "Mul", "Div", "Cast")
        if node is None:
            return False
        if node.op_type == "MatMul":
            return True
        value = node.inputs[0] if scalar(node.inputs[0]) is None else node.inputs[1]
    return False


def remove_scale(value: ir.Value | None, found: Scores) -> ir.Value | None:
    """The value before a constant factor, which is multiplied into the scale."""
    node = made_by(value, "Mul", "Div")
    if node is None:
        return value
    inner = _unscale(node, found)
    if inner is None:
        return value
    found.nodes.append(node)
    return inner


def _key(value: ir.Value | None, found: Scores) -> tuple[ir.Value, list[int]] | None:
    """The key before its transpose, and the order of axes that Attention needs."""
    value = remove_scale(value, found)
    transpose = made_by(value, "Transpose")
    order = None if transpose is None else order_of(transpose)
    if transpose is None or order is None or len(order) != 4:
        return None
    found.nodes.append(transpose)
    *batch, second, last = order
    source = remove_scale(transpose.inputs[0], found)
    return None if source is None else (source, [*batch, last, second])


def _mask_fits(found: Scores, scores: ir.Value) -> bool:
    """Whether the mask has all keys (Attention pads a shorter one) and broadcasts to the scores."""
    mask = found.mask if found.hidden is None else found.hidden[0]
    if mask is None:
        return True
    ours, theirs = dims(mask), dims(scores)
    if ours is None or theirs is None or not 2 <= len(ours) <= 4 or ours[-1] is None:
        return False
    if ours[-1] != theirs[-1] or (found.mask is not None and not is_float(mask)):
        return False
    tail = theirs[4 - len(ours) :]
    return all(a == 1 or (a is not None and a == b) for a, b in zip(ours[:-1], tail))


def _mask(op: Ops, found: Scores, q: ir.Value) -> ir.Value | None:
    """The mask input of Attention: of q's type, or boolean if it hides with minus infinity."""
    if found.hidden is not None:
        return build_where_mask(op, *found.hidden, q)
    mask = found.mask
    where = made_by(mask, "Where")
    if where is not None and scalar(where.inputs[1]) == 0 and scalar(where.inputs[2]) == -np.inf:
        return where.inputs[0]
    if mask is not None and mask.dtype != q.dtype:
        return op.Cast(mask, to=int(q.dtype or 1))
    return mask


def build_where_mask(
    op: Ops, condition: ir.Value, number: float, hides: bool, q: ir.Value
) -> ir.Value:
    """The mask of where(condition, scores, number): boolean if the number is minus infinity."""
    if np.isneginf(number):
        mask = op.Not(condition) if hides else condition
        mask.type, mask.shape = condition.type, condition.shape
        return mask
    kept, other = like(0.0, q), like(number, q)
    mask = op.Where(condition, *((other, kept) if hides else (kept, other)))
    mask.type, mask.shape = q.type, condition.shape
    return mask
