"""Convolutions: plain, transposed, deformable, and causal with a carried state."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Ints, Tensor
from onward.providers.torch.kernels import windows
from onward.providers.torch.kernels.empty_tensors import zeros_from
from onward.providers.torch.kernels.half_precision import float32_on_cpu
from onward.providers.torch.kernels.sampling import sample

kernel = OpTable()


@kernel("Conv")
@float32_on_cpu
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """y[n, m, o] = b[m] + Σ over c, k: w[m, c, k] x[n, c, o * stride + k * dilation - pad]"""
    rank = x.dim() - 2
    none, ones = [0] * rank, [1] * rank
    padding = pads[:rank] if pads else none
    is_empty = not (x.numel() and w.numel())
    if is_empty or auto_pad != "NOTSET" or (pads and padding != pads[rank:]):
        at = windows.place_windows(
            x.shape[2:],
            w.shape[2:],
            strides=strides,
            dilations=dilations,
            pads=pads,
            auto_pad=auto_pad,
        )
        if is_empty:
            return _empty_conv(x, w, [x.shape[0], w.shape[0], *at.counts], b)
        padding = at.begins
        if at.begins != at.ends:  # ATen pads both sides equally
            x, padding = windows.pad(x, at), none
    strides, dilations = strides or ones, dilations or ones
    if prefers_channels_last(x, group):
        x, w = channels_last(x), channels_last(w)
    return torch.convolution(x, w, b, strides, padding, dilations, False, none, group)


def prefers_channels_last(x: Tensor, group: int) -> bool:
    """Whether a convolution is computed with channels last, and any other layout is converted.

    Forward and backward then convert nothing. cuDNN does so in 16 bits (grouped convolutions are
    slower in this layout), and Inductor on a CPU: values that a backward pass reads, too, would
    otherwise be kept in both layouts.
    """
    if x.dim() != 4:
        return False
    if x.is_cuda:
        return x.dtype in (torch.float16, torch.bfloat16) and group == 1
    return x.device.type == "cpu" and torch.compiler.is_compiling()


def channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _empty_conv(x: Tensor, w: Tensor, shape: Ints, b: Tensor | None) -> Tensor:
    """A convolution without images, channels, pixels or filters: its bias; torch refuses most."""
    if min(shape) < 0:
        raise ValueError(f"the kernel is larger than the padded image of {list(x.shape[2:])}")
    return _biased(zeros_from(shape, x, w), b)


def _biased(y: Tensor, b: Tensor | None) -> Tensor:
    return y if b is None else y + b.reshape(-1, *[1] * (y.dim() - 2))


@kernel("ConvTranspose")
@float32_on_cpu
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """y[n, m, i * stride + k * dilation - pad] += w[c, m, k] x[n, c, i], from y = b

    length = stride (size - 1) + (k - 1) dilation + 1 + output_padding - pads
    """
    rank = x.dim() - 2
    none = [0] * rank
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    whole = [
        s * (size - 1) + (k - 1) * d + 1
        for size, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)
    ]
    grown = [n + more for n, more in zip(whole, output_padding or none)]
    if output_shape is None and auto_pad.startswith("SAME"):
        output_shape = [size * s for size, s in zip(x.shape[2:], strides)]
    if output_shape is not None:  # which determines the pads
        lengths = output_shape[-rank:]
        totals = [max(n - length, 0) for n, length in zip(grown, lengths)]
        begins = [total // 2 if auto_pad == "SAME_UPPER" else (total + 1) // 2 for total in totals]
    else:
        pads = pads if pads and auto_pad == "NOTSET" else none * 2
        begins = pads[:rank]
        lengths = [n - begin - end for n, begin, end in zip(grown, begins, pads[rank:])]

    if not (x.numel() and w.numel()):
        return _empty_conv(x, w, [x.shape[0], w.shape[1] * group, *lengths], b)
    # ATen pads both sides equally; its output padding compensates for a smaller end
    spare = [length - n + 2 * begin for length, n, begin in zip(lengths, whole, begins)]
    if all(0 <= n < max(s, d) for n, s, d in zip(spare, strides, dilations)):
        return torch.convolution(x, w, b, strides, begins, dilations, True, spare, group)
    y = torch.convolution(x, w, None, strides, none, dilations, True, none, group)
    both = [(-begin, length - n + begin) for begin, length, n in zip(begins, lengths, whole)]
    return _biased(F.pad(y, windows.last_axis_first(both)), b)


@kernel("DeformConv")
@float32_on_cpu
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints | None = None,
    group: int,
    kernel_shape: Ints | None = None,
    offset_group: int,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Conv whose tap k of window o reads x at o * stride + k * dilation - pad + offset[k, o],
    times mask[k, o]."""
    batch, channels, *sizes = x.shape
    outputs, taps = list(offset.shape[2:]), prod(w.shape[2:])
    at = windows.place_windows(
        sizes, w.shape[2:], strides=strides, dilations=dilations, pads=pads, auto_pad="NOTSET"
    )
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    groups = batch * offset_group
    offset = offset.to(wide).reshape(groups, *at.kernel, len(sizes), *outputs)
    points = [_tap_positions(offset, at, axis, size) for axis, size in enumerate(sizes)]
    grid = torch.stack(points[::-1], dim=-1).flatten(1, len(sizes) + 1)  # (., taps * o1, o2.., .)
    pixels = x.to(wide).reshape(groups, channels // offset_group, *sizes)
    read = sample(pixels, grid, "linear", "zeros", align_corners=False)
    if mask is not None:
        read = read.reshape(groups, channels // offset_group, taps, *outputs)
        read = read * mask.reshape(groups, 1, taps, *outputs)
    columns = read.to(x.dtype).reshape(batch, group, channels // group * taps, prod(outputs))
    y = w.reshape(group, w.shape[0] // group, channels // group * taps) @ columns
    return _biased(y.reshape(batch, w.shape[0], *outputs), b)


def _tap_positions(offset: Tensor, at: windows.WindowGeometry, axis: int, size: int) -> Tensor:
    """Positions that the taps of windows read along an axis: (groups, kernel..., outputs...)."""
    rank = len(at.kernel)
    points = offset.select(1 + rank, axis)
    numbers = torch.arange(
        max(at.kernel[axis], points.shape[1 + rank + axis]),
        dtype=offset.dtype,
        device=offset.device,
    )
    tap = numbers[: at.kernel[axis]] * at.dilations[axis]
    window = numbers[: points.shape[1 + rank + axis]] * at.strides[axis] - at.begins[axis]
    points = points + tap.reshape(-1, *[1] * (2 * rank - 1 - axis))
    points = points + window.reshape(-1, *[1] * (rank - 1 - axis))
    return (2 * points + 1) / size - 1  # as GridSample without align_corners counts


@kernel("CausalConvWithState")
@float32_on_cpu
def causal_conv_with_state(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    past: Tensor | None = None,
    *,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """y[t] = act(b + Σ over k: w[k] z[t + k]), z = [past, x]; the present is z's last K - 1."""
    carried = w.shape[2] - 1
    z = F.pad(x, (carried, 0)) if past is None else torch.cat([past, x], dim=2)
    y = F.conv1d(z, w, b, groups=x.shape[1]) if x.numel() else x
    return y if activation == "none" else F.silu(y), z[:, :, z.shape[2] - carried :]
