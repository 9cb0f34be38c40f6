"""The sliding windows of convolutions and poolings, and their gradient.

Sizes may be unknown. Then the gradient is computed a little larger and is cut; if they are known,
one ConvTranspose is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onward.gradients.gradient_ops import GradientOps, Size, rank
from onward.passes.value_facts import attribute


class Windows(NamedTuple):
    """The windows of a node, every list with one entry for each axis."""

    sizes: list[Size]  # of x
    counts: list[Size]  # the number of windows
    kernel: list[Size]
    strides: list[int]
    dilations: list[int]
    begins: list[int] | ir.Value  # padding in front of the first element
    ends: list[int] | None  # as given: after the last element

    @property
    def is_known(self) -> bool:
        """Whether every size is a number."""
        sizes = (*self.sizes, *self.counts, *self.kernel)
        return isinstance(self.begins, list) and all(isinstance(size, int) for size in sizes)


def ints(sizes: Sequence[Size]) -> list[int]:
    """Sizes as ints; an error if one is unknown."""
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError("the sizes of its kernel must be known")
    return [size for size in sizes if isinstance(size, int)]


def spans(kernel: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """The number of elements from a window's first element to its last."""
    return [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]


def place(op: GradientOps, node: ir.Node, x: ir.Value, y: ir.Value, kernel: list[Size]) -> Windows:
    """The windows of a convolution or pooling from x to y."""
    with_rank(y, rank(x))
    axes = rank(x) - 2
    strides = list(attribute(node, "strides") or [1] * axes)
    dilations = list(attribute(node, "dilations") or [1] * axes)
    pads = list(attribute(node, "pads") or [0] * (2 * axes))
    sizes, counts = op.sizes(x)[2:], op.sizes(y)[2:]
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto == "NOTSET":
        return Windows(sizes, counts, kernel, strides, dilations, pads[:axes], pads[axes:])
    if auto == "VALID":
        none = [0] * axes
        return Windows(sizes, counts, kernel, strides, dilations, none, none)
    begins = _same(op, sizes, strides, spans(ints(kernel), dilations), auto)
    return Windows(sizes, counts, kernel, strides, dilations, begins, None)


def tiles(at: Windows) -> bool:
    """Whether the windows cover every element exactly once."""
    if not at.is_known or at.begins != [0] * len(at.sizes):
        return False
    steps = zip(at.counts, at.strides)
    covered = [n * s for n, s in steps if isinstance(n, int)]
    return at.kernel == at.strides and set(at.dilations) == {1} and at.sizes == covered


def with_rank(y: ir.Value, axes: int) -> ir.Value:
    """y with a rank, which ONNX does not infer if the kernel's sizes are unknown."""
    if y.shape is None:
        y.shape = ir.Shape([None] * axes)
    return y


def _same(
    op: GradientOps, sizes: list[Size], strides: list[int], lengths: list[int], auto: str
) -> list[int] | ir.Value:
    """The pads of SAME, for ceil(size / stride) windows: half in front, rounded down or up."""
    up = 0 if auto == "SAME_UPPER" else 1
    if all(isinstance(n, int) or s == 1 for n, s in zip(sizes, strides)):
        axes = zip(sizes, strides, lengths)
        needs = [span - 1 - ((n - 1) % s if isinstance(n, int) else 0) for n, s, span in axes]
        return [(max(need, 0) + up) // 2 for need in needs]
    last = op.Mod(op.Sub(op.shape(*sizes), 1), strides)  # where the last window starts, less steps
    needs = op.Max(op.Sub(np.array(lengths) - 1, last), 0)
    return op.Div(op.Add(needs, up), 2)


def spread(op: GradientOps, dy: ir.Value, w: Any, at: Windows, *, group: int = 1) -> ir.Value:
    """x[i] = sum of dy[o] w[k] over what window o's tap k reads from i: dx of a convolution."""
    shared = {"strides": at.strides, "dilations": at.dilations, "group": group}
    if at.is_known:
        begins, ends, more = _fitted(at)
        padded = {"pads": [*begins, *ends]} if any((*begins, *ends)) else {}
        grown = {"output_padding": more} if any(more) else {}
        return op.ConvTranspose(dy, w, **shared, **padded, **grown)
    if max(at.strides) == 1 and at.ends is not None and isinstance(at.begins, list):
        return op.ConvTranspose(dy, w, **shared, pads=[*at.begins, *at.ends])
    longer = op.ConvTranspose(dy, w, **shared, output_padding=[s - 1 for s in at.strides])
    first = op.constant(np.array(at.begins)) if isinstance(at.begins, list) else at.begins
    axes = list(range(2, 2 + len(at.strides)))
    return op.Slice(longer, first, op.Add(first, op.shape(*at.sizes)), axes)


def _fitted(at: Windows) -> tuple[list[int], list[int], list[int]]:
    """Pads in front and behind that the windows cover exactly, and the elements they leave out."""
    assert isinstance(at.begins, list)
    steps = zip(ints(at.counts), at.strides, spans(ints(at.kernel), at.dilations))
    lengths = [(n - 1) * s + span for n, s, span in steps]
    behind = [
        length - size - begin for length, size, begin in zip(lengths, ints(at.sizes), at.begins)
    ]
    return at.begins, [max(n, 0) for n in behind], [max(-n, 0) for n in behind]
