"""Resize, GridSample and AffineGrid."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Floats, Ints, Tensor
from onward.providers.torch.kernels.empty_tensors import empty_from
from onward.providers.torch.kernels.emulated_dtypes import by_bits
from onward.providers.torch.kernels.sampling import CUBIC, cubic_weight, sample

kernel = OpTable()

_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_HALF_PIXEL = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")


class _Axis(NamedTuple):
    """How one axis is resized."""

    axis: int
    size: int
    length: int  # its new size
    scale: float
    width: float  # size * scale, of which length is the whole part
    start: float  # the part of it that tf_crop_and_resize takes
    end: float


@kernel("Resize")
def resize(
    x: Tensor,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int,
    axes: Ints | None = None,
    coordinate_transformation_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    extrapolation_value: float,
    keep_aspect_ratio_policy: str,
    mode: str,
    nearest_mode: str,
) -> Tensor:
    """Interpolate x at the origin of each position of y, one axis after the other."""
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    resized = _resized(
        list(x.shape), roi if crop else None, scales, sizes, axes, keep_aspect_ratio_policy
    )
    lengths = list(x.shape)
    for a in resized:
        lengths[a.axis] = a.length
    if 0 in lengths:
        return empty_from(x, lengths)
    usual = mode != "cubic" or (cubic_coeff_a == CUBIC and not exclude_outside)
    aten = _aten_mode(x, resized, mode, coordinate_transformation_mode, nearest_mode)
    if aten is not None and usual and not antialias:
        aligned = coordinate_transformation_mode == "align_corners"
        wide = x  # on a CPU, ATen rounds cubic sums to half after every axis
        if aten == "bicubic" and x.device.type == "cpu" and x.dtype.itemsize == 2:
            wide = x.float()
        align = None if aten == "nearest" else aligned
        return F.interpolate(wide, lengths[2:], mode=aten, align_corners=align).to(x.dtype)
    origins = [_origins(a, coordinate_transformation_mode, x.device) for a in resized]
    outside = [(at < 0) | (at > a.size - 1) for a, at in zip(resized, origins)] if crop else None
    if mode == "nearest":
        return _picked(x, resized, origins, nearest_mode, outside, extrapolation_value)
    y = _computable(x)
    for i, (a, at) in enumerate(zip(resized, origins)):
        y = _interpolated(y, a, at, mode, cubic_coeff_a, bool(antialias), bool(exclude_outside))
        if outside is not None:
            y = y.masked_fill(_along(outside[i], a.axis, y), extrapolation_value)
    return _saturated(y, x.dtype)


def _resized(
    shape: Ints,
    roi: Floats | None,
    scales: Floats | None,
    sizes: Ints | None,
    axes: Ints | None,
    policy: str,
) -> list[_Axis]:
    """The axes that change, from whichever of `scales` and `sizes` is given."""
    axes = list(range(len(shape))) if axes is None else [axis % len(shape) for axis in axes]
    olds = [shape[axis] for axis in axes]
    if scales:
        lengths = [_scaled(old, scale) for old, scale in zip(olds, scales)]
        widths = [old * scale for old, scale in zip(olds, scales)]
    else:
        assert sizes is not None
        lengths, widths = sizes, [float(size) for size in sizes]
        scales = [size / old if old else 1.0 for size, old in zip(sizes, olds)]
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales, widths = [scale] * len(axes), [scale * old for old in olds]
            lengths = [math.floor(width + 0.5) for width in widths]
    starts, ends = (
        (roi[: len(axes)], roi[len(axes) :]) if roi else ([0.0] * len(axes), [1.0] * len(axes))
    )
    every = map(_Axis, axes, olds, lengths, scales, widths, starts, ends)
    return [a for a in every if not (a.size == a.length == a.width and (a.start, a.end) == (0, 1))]


def _scaled(size: int, scale: float) -> int:
    """floor(size * scale) as float32 has it: 10 * 0.7 is 7, though 0.7 is a little less."""
    return math.floor(size * scale * (1 + 2**-25))


def _aten_mode(
    x: Tensor, resized: list[_Axis], mode: str, transformation: str, nearest_mode: str
) -> str | None:
    """The mode of F.interpolate with exactly the same result, if there is one."""
    inner = x.dim() in _LINEAR and all(a.axis >= 2 for a in resized)
    if not inner or not x.is_floating_point() or not resized:
        return None
    if transformation == "pytorch_half_pixel" and any(a.length == 1 for a in resized):
        return None  # the one element comes from place 0
    if mode == "nearest":
        # every element some power of two times: no rounding is involved
        repeated = all(a.scale in (2, 4, 8, 16) and a.length == a.width for a in resized)
        floors = transformation == "asymmetric" and nearest_mode == "floor"
        rounds = transformation in _HALF_PIXEL and nearest_mode.startswith("round")
        return "nearest" if repeated and (floors or rounds) else None
    whole = all(abs(a.width - a.length) <= 1e-6 * a.width for a in resized)
    if not whole or transformation not in (*_HALF_PIXEL, "align_corners"):
        return None
    if mode == "linear":
        return _LINEAR[x.dim()]
    return "bicubic" if x.dim() == 4 else None


def _origins(a: _Axis, transformation: str, device: torch.device) -> Tensor:
    """The position in x of each position of y, along one axis.

    Rounded to float32, as other engines compute ties: a scale of 0.7 is a little less.
    """
    place = torch.arange(a.length, dtype=torch.float64, device=device)
    last = a.size - 1
    if transformation == "asymmetric":
        return _as_float32(place / a.scale)
    if transformation == "align_corners":
        return _as_float32(place * last / (a.width - 1)) if a.length > 1 else place
    if transformation == "tf_crop_and_resize":
        if a.length == 1:
            return place + 0.5 * (a.start + a.end) * last
        step = place * (a.end - a.start) * last / (a.width - 1)
        return _as_float32(a.start * last + step)
    if transformation == "pytorch_half_pixel" and a.length == 1:
        return place
    at = _as_float32((place + 0.5) / a.scale) - 0.5
    if transformation == "half_pixel_symmetric":
        at = at + a.size / 2 * (1 - a.length / a.width)
    return at


def _as_float32(x: Tensor) -> Tensor:
    return x.float().double()


@by_bits
def _picked(
    x: Tensor,
    resized: list[_Axis],
    origins: list[Tensor],
    nearest_mode: str,
    outside: list[Tensor] | None,
    value: float,
) -> Tensor:
    """y[i] = x[the place nearest to origins[i]]"""
    for i, (a, at) in enumerate(zip(resized, origins)):
        x = x.index_select(a.axis, _nearest(at, nearest_mode).clamp(0, a.size - 1).long())
        if outside is not None:
            fill = value if x.is_floating_point() else int(value)
            x = x.masked_fill(_along(outside[i], a.axis, x), fill)
    return x


def _nearest(at: Tensor, nearest_mode: str) -> Tensor:
    if nearest_mode == "floor":
        return at.floor()
    if nearest_mode == "ceil":
        return at.ceil()
    return (at - 0.5).ceil() if nearest_mode == "round_prefer_floor" else (at + 0.5).floor()


def _interpolated(
    x: Tensor, a: _Axis, at: Tensor, mode: str, cubic: float, antialias: bool, exclude: bool
) -> Tensor:
    """y[i] = Σ over taps k: w((k - at[i]) * shrink) x[k]; antialias widens w by the scale."""
    shrink = min(a.scale, 1.0) if antialias else 1.0
    first = math.floor(-(2 if mode == "cubic" else 1) / shrink) + 1
    taps = torch.arange(first, 2 - first, device=x.device)
    index = at.floor().unsqueeze(1) + taps  # (length, taps)
    distance = (index - at.unsqueeze(1)) * shrink
    linear = (1 - distance.abs()).clamp(min=0)
    weight = cubic_weight(distance, cubic) if mode == "cubic" else linear
    if exclude:
        weight = torch.where((index >= 0) & (index < a.size), weight, 0.0)
    if exclude or antialias:
        total = weight.sum(1, keepdim=True)
        weight = weight / torch.where(total == 0, 1.0, total)
    index = index.clamp(0, a.size - 1).long()
    weight = weight.to(x.dtype)
    columns = zip(index.unbind(1), weight.unbind(1))
    terms = [x.index_select(a.axis, i) * _along(w, a.axis, x) for i, w in columns]
    return sum(terms[1:], terms[0])


def _along(vector: Tensor, axis: int, x: Tensor) -> Tensor:
    return vector.reshape(-1, *[1] * (x.dim() - 1 - axis))


def _computable(x: Tensor) -> Tensor:
    """The type that x is interpolated in."""
    if x.is_complex() or x.dtype in (torch.float32, torch.float64):
        return x
    return x.float() if x.dtype.itemsize <= 2 else x.double()


def _saturated(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Back to x's type: integers are rounded and bounded."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool or y.dtype == dtype:
        return y.to(dtype)
    bounds = torch.iinfo(dtype)
    return y.round().clamp(bounds.min, bounds.max).to(dtype)


@kernel("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int, mode: str, padding_mode: str
) -> Tensor:
    """y[n, c, p] = x[n, c] at the point grid[n, p]"""

    def sampled(part: Tensor) -> Tensor:
        part = _computable(part)
        return sample(part, grid.to(part.dtype), mode, padding_mode, bool(align_corners))

    y = torch.complex(sampled(x.real), sampled(x.imag)) if x.is_complex() else sampled(x)
    return y.to(x.dtype)


@kernel("AffineGrid")
def affine_grid(theta: Tensor, size: Ints, *, align_corners: int) -> Tensor:
    """grid[n, p] = theta[n] · (p, 1), p over [-1, 1] in each direction"""
    return F.affine_grid(theta, size, align_corners=bool(align_corners))
