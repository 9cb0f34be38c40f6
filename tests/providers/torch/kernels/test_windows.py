"""Positions of windows, compared with windows counted one by one."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from onward.providers.torch.kernels import windows

sizes = st.integers(1, 12)
small = st.integers(1, 4)
pads = st.integers(0, 3)


@given(sizes, small, small, small, pads, pads, st.booleans())
def test_explicit_pads_leave_as_many_windows_as_fit(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int, ceil: bool
) -> None:
    span = (kernel - 1) * dilation + 1
    length = begin + size + end
    assume(span <= length and end < span)  # no window is only padding
    at = windows.place_windows(
        [size],
        [kernel],
        strides=[stride],
        dilations=[dilation],
        pads=[begin, end],
        auto_pad="NOTSET",
        ceil_mode=int(ceil),
    )
    starts = range(0, length, stride)
    whole = [start for start in starts if start + span <= length]
    reaching = [
        start for start in starts if start < begin + size and start - stride + span < length
    ]
    assert at.counts == [len(reaching) if ceil else len(whole)]


@given(sizes, small, small, small, st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
def test_same_pads_keep_one_window_for_each_stride(
    size: int, kernel: int, stride: int, dilation: int, auto_pad: str
) -> None:
    at = windows.place_windows(
        [size], [kernel], strides=[stride], dilations=[dilation], pads=None, auto_pad=auto_pad
    )
    assert at.counts == [-(-size // stride)]
    more, less = (at.ends, at.begins) if auto_pad == "SAME_UPPER" else (at.begins, at.ends)
    assert more[0] - less[0] in (0, 1)
    x = torch.arange(1.0, size + 1).reshape(1, 1, size)
    seen = windows.view(windows.pad(x, at), at)
    assert list(seen.shape) == [1, 1, *at.counts, kernel]


def test_a_view_holds_each_window_with_its_padding() -> None:
    at = windows.place_windows(
        [4], [2], strides=[2], dilations=[3], pads=[1, 1], auto_pad="NOTSET", ceil_mode=0
    )
    seen = windows.view(windows.pad(torch.arange(4.0).reshape(1, 1, 4), at, value=-1.0), at)
    assert seen.tolist() == [[[[-1.0, 2.0], [1.0, -1.0]]]]
