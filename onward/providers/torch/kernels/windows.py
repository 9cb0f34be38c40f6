"""Positions of sliding windows: strides, dilations and pads by ONNX's rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch.nn.functional as F

from onward.providers.torch.dtypes import Ints, Tensor


class WindowGeometry(NamedTuple):
    """The windows of a convolution or a pooling, every list with one entry for each axis."""

    sizes: Ints  # of the axes they slide over
    kernel: Ints
    strides: Ints
    dilations: Ints
    begins: Ints  # padding before the first element
    ends: Ints  # padding after the last one
    ceil: bool  # the last window may reach over the end

    @property
    def spans(self) -> Ints:
        """From a window's first element to its last."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]

    @property
    def counts(self) -> Ints:
        """How many windows there are: floor or ceil((size + padding - span) / stride) + 1."""
        axes = zip(self.sizes, self.begins, self.ends, self.spans, self.strides)
        return [
            self._count(size, begin, size + begin + end - span, s)
            for size, begin, end, span, s in axes
        ]

    def _count(self, size: int, begin: int, room: int, stride: int) -> int:
        if not self.ceil:
            return room // stride + 1
        last = (room + stride - 1) // stride
        # a window that would start in the padding behind the end is left out
        return last if last * stride >= size + begin else last + 1


def place_windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
    ceil_mode: int = 0,
) -> WindowGeometry:
    """The windows over axes of these sizes; None means ONNX's default.

    SAME pads as much as ceil(size / stride) windows need, half of it on each side.
    """
    rank = len(sizes)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads if pads and auto_pad == "NOTSET" else [0] * (2 * rank)
    ceil = bool(ceil_mode) and auto_pad == "NOTSET"
    at = WindowGeometry(
        list(sizes), list(kernel), strides, dilations, pads[:rank], pads[rank:], ceil
    )
    if not auto_pad.startswith("SAME"):
        return at
    needed = [(size + s - 1) // s * s - s + span for size, s, span in zip(sizes, strides, at.spans)]
    totals = [max(length - size, 0) for length, size in zip(needed, sizes)]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less)]
    begins, ends = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    return at._replace(begins=begins, ends=ends)


def pad(x: Tensor, at: WindowGeometry, value: float = 0.0) -> Tensor:
    """Pad `x` so that exactly `at.counts` windows fit it without further padding."""
    return F.pad(x, padding_of(x, at), value=value)


def padding_of(x: Tensor, at: WindowGeometry) -> Ints:
    """The pads that `pad` adds to x, in F.pad's order; negative where it crops."""
    axes = zip(x.shape[2:], at.begins, at.counts, at.strides, at.spans)
    both = [(begin, (n - 1) * s + span - size - begin) for size, begin, n, s, span in axes]
    return last_axis_first(both)


def last_axis_first(both: Sequence[tuple[int, int]]) -> Ints:
    """(begin, end) of each axis in F.pad's order."""
    return list(chain.from_iterable(reversed(both)))


def view(x: Tensor, at: WindowGeometry) -> Tensor:
    """The windows of a padded `x`, without a copy: (batch, channel, counts..., kernel...)."""
    for i, (span, stride, dilation) in enumerate(zip(at.spans, at.strides, at.dilations)):
        x = x.unfold(2 + i, span, stride)[..., ::dilation]
    return x
