"""Pooling over windows, whole images and regions, and MaxUnpool."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf, prod
from typing import NamedTuple

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Ints, Tensor
from onward.providers.torch.kernels import windows
from onward.providers.torch.kernels.empty_tensors import empty_from
from onward.providers.torch.kernels.windows import WindowGeometry

kernel = OpTable()

_AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def _has_symmetric_pads(at: WindowGeometry) -> bool:
    """Whether ATen can do the padding: the same on both sides, at most half a kernel."""
    if at.begins != at.ends:
        return False
    return not any(at.begins) or all(2 * begin <= k for begin, k in zip(at.begins, at.kernel))


def _empty_result(x: Tensor, at: WindowGeometry) -> Tensor | None:
    """The result if it has no elements, which torch refuses to pool; else None."""
    shape = [*x.shape[:2], *at.counts]
    return empty_from(x, shape) if min(shape) == 0 else None


# -- windows -----------------------------------------------------------------------------------


@kernel("AveragePool")
def average_pool(
    x: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    count_include_pad: int,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """The mean of each window, of its elements inside x or of its padding too."""
    at = windows.place_windows(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    rank = len(kernel_shape)
    if not x.numel() and (nothing := _empty_result(x, at)) is not None:
        return nothing
    if rank in _AVERAGE and max(at.dilations) == 1 and _has_symmetric_pads(at):
        pool = _AVERAGE[rank]
        return pool(x, at.kernel, at.strides, at.begins, at.ceil, bool(count_include_pad))
    y = _window_sums(x, at)
    for axis, size in enumerate(x.shape[2:]):
        counted = _count_elements(at, axis, size, bool(count_include_pad), x.device)
        y = y / counted.to(x.dtype).reshape(-1, *[1] * (rank - 1 - axis))
    return y


def _window_sums(x: Tensor, at: WindowGeometry) -> Tensor:
    x = windows.pad(x, at)
    if len(at.kernel) in _AVERAGE and max(at.dilations) == 1:
        return _AVERAGE[len(at.kernel)](x, at.kernel, at.strides) * prod(at.kernel)
    return windows.view(x, at).sum(tuple(range(-len(at.kernel), 0)))


def _count_elements(
    at: WindowGeometry, axis: int, size: int, padding: bool, device: torch.device
) -> Tensor:
    """The number of elements of each window along an axis, with or without padding."""
    first = torch.arange(at.counts[axis], device=device) * at.strides[axis] - at.begins[axis]
    taps = torch.arange(at.kernel[axis], device=device) * at.dilations[axis]
    places = first.unsqueeze(1) + taps
    low, high = (-at.begins[axis], size + at.ends[axis]) if padding else (0, size)
    return ((places >= low) & (places < high)).sum(1)


@kernel("LpPool")
def lp_pool(
    x: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    p: int,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """(Σ over the window: |x|^p)^(1/p)"""
    at = windows.place_windows(
        x.shape[2:],
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    if not x.numel() and (nothing := _empty_result(x, at)) is not None:
        return nothing
    wide = x.float() if x.dtype.itemsize == 2 else x  # powers overflow a float16
    return _window_sums(wide.abs() ** p, at).pow(1 / p).to(x.dtype)


@kernel("MaxPool")
def max_pool(
    x: Tensor,
    *,
    auto_pad: str,
    ceil_mode: int,
    dilations: Ints | None = None,
    kernel_shape: Ints,
    pads: Ints | None = None,
    storage_order: int,
    strides: Ints | None = None,
    outputs: int,
) -> tuple[Tensor, ...]:
    """The largest element of each window, and its flat index in x."""
    sizes, rank = list(x.shape[2:]), len(kernel_shape)
    at = windows.place_windows(
        sizes,
        kernel_shape,
        strides=strides,
        dilations=dilations,
        pads=pads,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
    )
    if not x.numel() and (nothing := _empty_result(x, at)) is not None:
        return (nothing, nothing.to(torch.int64))[:outputs]
    wide = x if x.is_floating_point() else x.float()  # CUDA pools no integers
    if rank in _MAX and outputs == 1:
        return (_largest(wide, at).to(x.dtype),)
    if rank in _MAX and _has_symmetric_pads(at):
        y, index = _MAX[rank](
            wide, at.kernel, at.strides, at.begins, at.dilations, at.ceil, return_indices=True
        )
        places = _places(index, sizes)
    else:
        taken = windows.view(windows.pad(wide, at, -inf), at).flatten(-rank).max(-1)
        y, places = taken.values, _places(taken.indices, at.kernel)
        places = [_from_tap(place, at, axis, sizes[axis]) for axis, place in enumerate(places)]
    return y.to(x.dtype), _flat_index(places, sizes, storage_order)


def _largest(x: Tensor, at: WindowGeometry) -> Tensor:
    pool = _MAX[len(at.kernel)]
    if _has_symmetric_pads(at):
        return pool(x, at.kernel, at.strides, at.begins, at.dilations, at.ceil)
    return pool(windows.pad(x, at, -inf), at.kernel, at.strides, 0, at.dilations)


def _places(index: Tensor, sizes: Ints) -> list[Tensor]:
    """A flat index, last axis fastest, as one index for each axis."""
    places = []
    for size in reversed(sizes):
        places.append(index % size)
        index = index // size
    return places[::-1]


def _from_tap(tap: Tensor, at: WindowGeometry, axis: int, size: int) -> Tensor:
    """Where in x a window's tap lies along one axis."""
    first = torch.arange(at.counts[axis], device=tap.device) * at.strides[axis] - at.begins[axis]
    first = first.reshape(-1, *[1] * (len(at.kernel) - 1 - axis))
    return (tap * at.dilations[axis] + first).clamp(0, size - 1)


def _flat_index(places: list[Tensor], sizes: Ints, storage_order: int) -> Tensor:
    """An index into the whole tensor: planes one after the other, each in storage order."""
    axes = list(zip(places, sizes))
    (index, _), *rest = axes if storage_order == 0 else axes[::-1]
    for place, size in rest:
        index = index * size + place
    planes = torch.arange(index.shape[0] * index.shape[1], device=index.device) * prod(sizes)
    return index + planes.reshape(*index.shape[:2], *[1] * len(sizes))


@kernel("MaxUnpool")
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """y[indices[i]] = x[i], zero elsewhere; y has the shape that was pooled, then is padded."""
    rank = len(kernel_shape)
    pads, strides = pads or [0] * (2 * rank), strides or [1] * rank
    shape = list(x.shape[:2]) + [
        (size - 1) * s + k - begin - end
        for size, s, k, begin, end in zip(
            x.shape[2:], strides, kernel_shape, pads[:rank], pads[rank:]
        )
    ]
    y = torch.zeros(prod(shape), dtype=x.dtype, device=x.device)
    y = y.scatter(0, indices.flatten(), x.flatten()).reshape(shape)
    if output_shape is None:
        return y
    more = [(0, wanted - size) for wanted, size in zip(output_shape, shape)]
    return F.pad(y, windows.last_axis_first(more))


# -- whole images ------------------------------------------------------------------------------


def _inner(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.dim()))


@kernel("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(_inner(x), keepdim=True)


@kernel("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.amax(_inner(x), keepdim=True)


@kernel("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, p, _inner(x), keepdim=True)
    return norm


# -- regions -----------------------------------------------------------------------------------


@kernel("MaxRoiPool")
def max_roi_pool(x: Tensor, rois: Tensor, *, pooled_shape: Ints, spatial_scale: float) -> Tensor:
    """The largest element of each bin of each region [image, x1, y1, x2, y2], ends included."""
    corners = rois[:, 1:].float() * spatial_scale
    corners = torch.sign(corners) * torch.floor(corners.abs() + 0.5)  # half away from zero
    x1, y1, x2, y2 = corners.unbind(1)
    y = x[rois[:, 0].long()]  # (rois, channels, height, width)
    y = _bin_maxima(y, _bins(x1, x2, pooled_shape[1], x.shape[3]))
    y = _bin_maxima(y.transpose(2, 3), _bins(y1, y2, pooled_shape[0], x.shape[2]))
    y = y.transpose(2, 3)
    return torch.where(y == -inf, 0.0, y)  # an empty bin


def _bins(start: Tensor, end: Tensor, count: int, size: int) -> Tensor:
    """Which places each bin of each region covers: (rois, count, size)."""
    width = (end - start + 1).clamp(min=1).unsqueeze(1) / count
    number = torch.arange(count, device=start.device)
    low = torch.floor(number * width) + start.unsqueeze(1)
    high = torch.ceil((number + 1) * width) + start.unsqueeze(1)
    place = torch.arange(size, device=start.device)
    return (place >= low.unsqueeze(2)) & (place < high.unsqueeze(2))


def _bin_maxima(x: Tensor, bins: Tensor) -> Tensor:
    """The maximum of the last axis within each bin: (rois, channels, other, count)."""
    maxima = [torch.where(one[:, None, None], x, -inf).amax(3) for one in bins.unbind(1)]
    return torch.stack(maxima, dim=3)


@kernel("RoiAlign")
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str,
    mode: str,
    output_height: int,
    output_width: int,
    sampling_ratio: int,
    spatial_scale: float,
) -> Tensor:
    """Each bin of each region [x1, y1, x2, y2] as the mean, or maximum, of points sampled in it.

    A point reads its four neighbours. Each region has count_h x count_w points in a bin; all have
    the size of the largest count, and points that a region does not have weigh 0.
    """
    (batch, channels, height, width), regions = x.shape, rois.shape[0]
    half_pixel = coordinate_transformation_mode == "half_pixel"
    wide = x.float() if x.dtype.itemsize == 2 else x
    x1, y1, x2, y2 = (rois.to(wide.dtype) * spatial_scale - 0.5 * half_pixel).unbind(1)
    smallest = -inf if half_pixel else 1.0
    rows = _taps(y1, y2, output_height, height, sampling_ratio, smallest)
    columns = _taps(x1, x2, output_width, width, sampling_ratio, smallest)
    image = batch_indices.reshape(-1, 1, 1) * (height * width)
    index = _combine_taps(torch.add, image + rows.place * width, columns.place)
    table = wide.permute(0, 2, 3, 1).reshape(batch * height * width, channels)
    if mode == "avg":
        row_means, column_means = (t.weight / t.points.clamp(min=1) for t in (rows, columns))
        weight = _combine_taps(torch.mul, row_means, column_means)
        y = F.embedding_bag(index, table, mode="sum", per_sample_weights=weight)
    else:
        weight = _combine_taps(torch.mul, rows.weight, columns.weight)
        used = _combine_taps(torch.logical_and, rows.used, columns.used)
        y = _largest_tap(table, index, weight, used)
    y = y.reshape(regions, output_height, output_width, channels)
    return y.permute(0, 3, 1, 2).to(x.dtype)


class _Taps(NamedTuple):
    """The taps of regions along one axis, all but `points` of shape (regions, bins, points * 2)."""

    place: Tensor
    weight: Tensor
    used: Tensor  # whether the region has this point
    points: Tensor  # how many points a bin has: (regions, 1, 1)


def _taps(start: Tensor, end: Tensor, bins: int, size: int, ratio: int, smallest: float) -> _Taps:
    step = ((end - start).clamp(min=smallest) / bins).reshape(-1, 1, 1)
    count = torch.full_like(step, ratio) if ratio else step.ceil().clamp(min=0)
    points = ratio
    if not ratio:  # as many as the largest region needs: they depend on data
        points = int(count.amax().clamp(min=1)) if count.numel() else 1
    point = torch.arange(points, dtype=step.dtype, device=step.device)
    number = torch.arange(bins, dtype=step.dtype, device=step.device).unsqueeze(1)
    at = start.reshape(-1, 1, 1) + number * step + (point + 0.5) * step / count.clamp(min=1)
    used = (point < count).expand_as(at)
    inside = (at >= -1) & (at <= size) & used
    at = at.clamp(0, size - 1)
    low = at.floor()
    weight = torch.stack([1 - (at - low), at - low], dim=3) * inside.unsqueeze(3)
    index = torch.stack([low, (low + 1).clamp(max=size - 1)], dim=3).long()
    return _Taps(index.flatten(2), weight.flatten(2), used.repeat_interleave(2, dim=2), count)


def _combine_taps(combine: Callable[..., Tensor], rows: Tensor, columns: Tensor) -> Tensor:
    """Every tap of a bin's row with every tap of its column: (regions * bins, taps)."""
    both = combine(rows[:, :, None, :, None], columns[:, None, :, None, :])
    return both.flatten(3).flatten(0, 2)


def _largest_tap(table: Tensor, index: Tensor, weight: Tensor, used: Tensor) -> Tensor:
    """The largest weighted neighbour of each bin; ONNX does not add up a point's four first."""
    taps = zip(index.unbind(1), weight.unbind(1), used.unbind(1))
    values = (torch.where(u[:, None], table[i] * w[:, None], -inf) for i, w, u in taps)
    y = reduce(torch.maximum, values)
    return torch.where(y == -inf, 0.0, y)  # a region without extent
