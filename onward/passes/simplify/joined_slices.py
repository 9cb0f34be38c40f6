"""Replace a sum of zero-padded parts by their Concat.

The gradients of q, k and v, slices of one projection, are each padded with zeros to its size. The
sum of adjacent padded parts is the Concat of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import (
    attribute,
    dims,
    input_of,
    ints,
    is_scalar,
    made_by,
    reads_once,
)

rule = Rules()


@dataclass(frozen=True)
class _Part:
    """A value that is padded with zeros: it is at `begin` to `end` along an axis."""

    padded: ir.Value
    value: ir.Value
    axis: int
    begin: int
    end: int
    whole: int  # the size after padding


@rule("Add", "Sum")
def joined_parts(op: Ops, node: ir.Node) -> Replacement:
    """pad(a) + pad(b) = concat(a, b), if b begins where a ends; other parts stay padded."""
    parts = [_padded_part(value) for value in node.inputs]
    found = [part for part in parts if part is not None]
    row = _longest_row(found)
    if len(row) < 2:
        return None
    first, last = row[0], row[-1]
    joined = op.Concat(*(part.value for part in row), axis=first.axis)
    if first.begin or last.end != first.whole:
        pads = [0] * (2 * len(dims(first.value) or ()))
        pads[first.axis], pads[first.axis + len(pads) // 2] = first.begin, first.whole - last.end
        joined = op.Pad(joined, pads, mode="constant")
    taken = {part.padded for part in row}
    rest = [value for value in node.inputs if value not in taken]
    if not rest:
        return joined
    return op.Add(joined, *rest) if len(rest) == 1 else op.Sum(joined, *rest)


def _padded_part(value: ir.Value | None) -> _Part | None:
    """The input of a Pad with zeros along one axis of static size."""
    pad = made_by(value, "Pad")
    if pad is None or value is None or not reads_once(value):
        return None
    x, pads, number = pad.inputs[0], ints(pad.inputs[1]), input_of(pad, 2)
    shape = dims(x)
    if x is None or shape is None or pads is None or attribute(pad, "mode") != "constant":
        return None
    if number is not None and not is_scalar(number, 0):
        return None
    axes = list(range(len(shape))) if input_of(pad, 3) is None else ints(input_of(pad, 3))
    if axes is None:
        return None
    moved = [i for i in range(len(axes)) if pads[i] or pads[i + len(axes)]]
    if len(moved) != 1 or min(pads) < 0:
        return None
    (i,) = moved
    axis = axes[i] % len(shape)
    size = shape[axis]
    if not isinstance(size, int):
        return None
    begin = pads[i]
    return _Part(value, x, axis, begin, begin + size, begin + size + pads[i + len(axes)])


def _longest_row(parts: list[_Part]) -> list[_Part]:
    """The longest list of adjacent parts along one axis."""
    longest: list[_Part] = []
    for first in parts:
        row = [first]
        while True:
            after = [p for p in parts if p.begin == row[-1].end and _fits(first, p)]
            if not after or after[0].begin == after[0].end:
                break
            row.append(after[0])
        if len(row) > len(longest):
            longest = row
    return longest


def _fits(a: _Part, b: _Part) -> bool:
    """Whether two parts are surely padded to the same shape: a sum may broadcast."""
    sizes = _other_sizes(a)
    return (a.axis, a.whole, sizes) == (b.axis, b.whole, _other_sizes(b)) and None not in sizes


def _other_sizes(part: _Part) -> list[int | str | None]:
    """A part's sizes along the other axes."""
    shape = dims(part.value) or ()
    return [size for axis, size in enumerate(shape) if axis != part.axis]
