"""Fuse x cos + rotate_half(x) sin into one RotaryEmbedding."""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    dims,
    input_of,
    ints,
    made_by,
    only_inside,
    other_input,
    rank,
)

rule = Rules()


@rule("Add")
def rotary_embedding(op: Ops, node: ir.Node) -> Replacement:
    """x of (batch, heads, time, size), with cos and sin of the same angles for both halves."""
    first, second = (made_by(value, "Mul") for value in node.inputs)
    if first is None or second is None:
        return None
    for straight, turned in ((first, second), (second, first)):
        found = _match(straight, turned)
        if found is None:
            continue
        x, cos, sin, inside = found
        if not only_inside([*inside, straight, turned], node):
            continue
        return op.RotaryEmbedding(x, _half(op, cos, x), _half(op, sin, x))
    return None


def _match(
    straight: ir.Node, turned: ir.Node
) -> tuple[ir.Value, ir.Node, ir.Node, list[ir.Node]] | None:
    for rotated in turned.inputs:
        half = _rotate_half(rotated)
        if half is None or rotated is None:
            continue
        x, inside = half
        if rank(x) != 4 or not any(value is x for value in straight.inputs):
            continue
        cos = _repeated(other_input(straight, x), "Cos")
        sin = _repeated(other_input(turned, rotated), "Sin")
        if cos is None or sin is None or cos[1] is not sin[1]:
            continue
        ours, angles = dims(x), dims(cos[1])
        if ours is None or angles is None or angles[1] is None or ours[2] != angles[1]:
            continue
        if angles[0] == 1 or (angles[0] is not None and angles[0] == ours[0]):
            return x, cos[0], sin[0], inside
    return None


def _rotate_half(value: ir.Value | None) -> tuple[ir.Value, list[ir.Node]] | None:
    """x of concat(-x[size / 2 :], x[: size / 2]) along the last axis."""
    concat = made_by(value, "Concat")
    if concat is None or len(concat.inputs) != 2 or attribute(concat, "axis") not in (-1, 3):
        return None
    neg, low = made_by(concat.inputs[0], "Neg"), concat.inputs[1]
    if neg is None:
        return None
    high = neg.inputs[0]
    split = made_by(low, "Split")
    if split is not None and list(split.outputs) == [low, high] and split.inputs[0] is not None:
        x = split.inputs[0]
        even = input_of(split, 1) is None or len(set(ints(split.inputs[1]) or [0, 1])) == 1
        last = attribute(split, "axis", 0) in (-1, 3)
        return (x, [concat, neg, split]) if even and last and rank(x) == 4 else None
    first, second = made_by(low, "Slice"), made_by(high, "Slice")
    if first is None or second is None or first.inputs[0] is not second.inputs[0]:
        return None
    whole, shape = first.inputs[0], dims(first.inputs[0])
    if whole is None or shape is None or len(shape) != 4 or not isinstance(shape[3], int):
        return None
    half = shape[3] // 2
    if _range(first, shape[3]) != (0, half) or _range(second, shape[3]) != (half, shape[3]):
        return None
    return (whole, [concat, neg, first, second]) if shape[3] == 2 * half else None


def _range(node: ir.Node, size: int) -> tuple[int, int] | None:
    """Begin and end of a Slice of the last axis."""
    starts, ends, axes = (ints(input_of(node, index)) for index in (1, 2, 3))
    steps = [1] if input_of(node, 4) is None else ints(input_of(node, 4))
    if not starts or not ends or axes not in ([3], [-1]) or steps != [1]:
        return None
    start, end, _ = slice(starts[0], ends[0]).indices(size)
    return start, end


def _repeated(value: ir.Value | None, operator: str) -> tuple[ir.Node, ir.Value] | None:
    """The node and angles f of unsqueeze(cos(concat(f, f)), 1)."""
    unsqueeze = made_by(value, "Unsqueeze")
    if unsqueeze is None or ints(unsqueeze.inputs[1]) != [1] or rank(unsqueeze.inputs[0]) != 3:
        return None
    wave = made_by(unsqueeze.inputs[0], operator)
    concat = None if wave is None else made_by(wave.inputs[0], "Concat")
    if wave is None or concat is None or len(concat.inputs) != 2:
        return None
    if concat.inputs[0] is not concat.inputs[1] or attribute(concat, "axis") not in (
        -1,
        2,
    ):
        return None
    return None if concat.inputs[0] is None else (wave, concat.inputs[0])


def _half(op: Ops, wave: ir.Node, x: ir.Value) -> ir.Value:
    """cos or sin of the angles without repetition: (batch, time, size / 2)."""
    concat = made_by(wave.inputs[0], "Concat")
    assert concat is not None
    half, angles, shape = op.one(wave.op_type, concat.inputs[0]), dims(concat.inputs[0]), dims(x)
    if angles is None or shape is None or angles[0] == shape[0]:
        return half
    return op.Expand(half, op.Concat(op.Shape(x, start=0, end=1), [1, 1], axis=0))
