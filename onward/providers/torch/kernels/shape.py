"""Operators that reshape, repeat, concatenate, slice or pad tensors."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Float, Floats, Ints, Tensor, torch_dtype
from onward.providers.torch.kernels.emulated_dtypes import by_bits

kernel = OpTable()

Sides = dict[int, tuple[int, int]]  # axis -> how much to pad at its begin and its end
_ATEN_PADS = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


# -- the same elements under another shape -----------------------------------------------------


@kernel("Identity")
def identity(x: Tensor) -> Tensor:
    return x


@kernel("Reshape")
def reshape(x: Tensor, shape: Ints, *, allowzero: int) -> Tensor:
    """0 keeps the input's size at that axis, unless `allowzero`; -1 is what is left."""
    if not allowzero:
        shape = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return torch.reshape(x, shape)


@kernel("Flatten")
def flatten(x: Tensor, *, axis: int) -> Tensor:
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


@kernel("Squeeze")
def squeeze(x: Tensor, axes: Ints | None = None) -> Tensor:
    return torch.squeeze(x) if axes is None else torch.squeeze(x, axes)


@kernel("Unsqueeze")
def unsqueeze(x: Tensor, axes: Ints) -> Tensor:
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@kernel("Transpose")
def transpose(x: Tensor, *, perm: Ints | None = None) -> Tensor:
    return x.permute(list(range(x.dim()))[::-1] if perm is None else perm)


@kernel("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str) -> Tensor:
    """(n, c·k², h, w) -> (n, c, h·k, w·k); the k² lie before c (DCR) or after it (CRD)."""
    n, deep, h, w = x.shape
    k = blocksize
    c = deep // (k * k)
    if mode == "DCR":
        blocks = x.reshape(n, k, k, c, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c, k, k, h, w).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c, h * k, w * k)


@kernel("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str) -> Tensor:
    """(n, c, h·k, w·k) -> (n, c·k², h, w): the inverse of DepthToSpace."""
    n, c, high, wide = x.shape
    k = blocksize
    h, w = high // k, wide // k
    blocks = x.reshape(n, c, h, k, w, k)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.permute(order).reshape(n, c * k * k, h, w)


# -- shapes as data, and tensors from numbers --------------------------------------------------


@kernel("Shape")
def shape(x: Tensor, *, start: int, end: int | None = None) -> Tensor:
    """Shape of an input of unknown rank; others are numbers (shape_arithmetic.py)."""
    return torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=x.device)


@kernel("Size")
def size(x: Tensor) -> Tensor:
    return torch.tensor(x.numel(), dtype=torch.int64, device=x.device)


@kernel("Constant")
def constant(
    *,
    value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: Floats | None = None,
    value_int: int | None = None,
    value_ints: Ints | None = None,
    device: torch.device,
) -> Tensor:
    if value is not None:
        return value
    floats = value_float if value_floats is None else value_floats
    if floats is not None:
        return torch.tensor(floats, dtype=torch.float32, device=device)
    ints = value_int if value_ints is None else value_ints
    return torch.tensor(ints, dtype=torch.int64, device=device)


@kernel("ConstantOfShape")
def constant_of_shape(
    shape: Ints, *, value: Float | None = None, output_type: int, device: torch.device
) -> Tensor:
    number = 0.0 if value is None else value
    return torch.full(shape, number, dtype=_dtype(output_type), device=device)


@kernel("Range")
def range_(
    start: Float,
    limit: Float,
    delta: Float,
    *,
    stash_type: int = 1,
    output_type: int,
    device: torch.device,
) -> Tensor:
    """start, start + delta, ... below limit (above it, if delta < 0); torch rounds only once."""
    if (limit - start) * delta < 0:
        limit = start
    return torch.arange(start, limit, delta, dtype=_dtype(output_type), device=device)


def _dtype(onnx_type: int) -> torch.dtype | None:
    """None where inference found no type (inside FlexAttention): torch uses the numbers' type."""
    return torch_dtype(onnx_type) if onnx_type else None


# -- more elements, or fewer -------------------------------------------------------------------


@kernel("Expand")
def expand(x: Tensor, shape: Ints) -> Tensor:
    """Broadcasts both ways: a 1 in `shape` keeps the input's size."""
    wanted = [1] * (x.dim() - len(shape)) + shape
    given = [1] * (len(shape) - x.dim()) + list(x.shape)
    return x.expand([old if new == 1 else new for old, new in zip(given, wanted, strict=True)])


@kernel("Tile")
def tile(x: Tensor, repeats: Ints) -> Tensor:
    return x.repeat(repeats)


@kernel("Concat")
def concat(*xs: Tensor, axis: int) -> Tensor:
    return torch.cat(xs, axis)


@kernel("Split")
def split(
    x: Tensor, split: Ints | None = None, *, axis: int, num_outputs: int | None = None, outputs: int
) -> tuple[Tensor, ...]:
    """Split into parts of the given sizes, or into equal ones, of which the last may be smaller."""
    if split is None:
        parts = num_outputs or outputs
        length = x.shape[axis]
        part = (length + parts - 1) // parts
        split = [part] * (parts - 1) + [length - part * (parts - 1)]
    return torch.split(x, split, axis)


@kernel("Slice")
def slice_(
    x: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None
) -> Tensor:
    """x[start:end:step] at each axis, clamped at the ends as in Python."""
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step > 0:
            x = _cut(x, axis, start, end, step)
        else:  # torch has no negative step: cut, turn round, then step
            length = x.shape[axis]
            first = min(start + length if start < 0 else start, length - 1)
            last = max(end + length if end < 0 else end, -1)
            x = _cut(x, axis, last + 1, max(first + 1, 0), 1).flip(axis)
            x = _cut(x, axis, 0, length, -step)
    return x


def _cut(x: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    index = (slice(None),) * (axis % x.dim())
    return x[(*index, slice(start, end, step))]


@kernel("Pad")
def pad(
    x: Tensor,
    pads: Ints,
    constant_value: Float | None = None,
    axes: Ints | None = None,
    *,
    mode: str,
) -> Tensor:
    """`pads` are all beginnings, then all ends, of `axes`; a negative one cuts off."""
    axes = list(range(x.dim())) if axes is None else [axis % x.dim() for axis in axes]
    both = zip(pads[: len(axes)], pads[len(axes) :], strict=True)
    sides = dict(zip(axes, both, strict=True))
    if mode == "constant":
        return torch.constant_pad_nd(x, _last_axis_first(x, sides), constant_value or 0)
    return _pad_from_input(x, sides, mode)


def _last_axis_first(x: Tensor, sides: Sides, first: int = 0) -> list[int]:
    """In torch's order: (begin, end) of the last axis, of the one before it, ... of `first`."""
    return [n for axis in range(x.dim() - 1, first - 1, -1) for n in sides.get(axis, (0, 0))]


@by_bits
def _pad_from_input(x: Tensor, sides: Sides, mode: str) -> Tensor:
    sides = {axis: side for axis, side in sides.items() if side != (0, 0)}
    outer = min([*sides, x.dim()])
    # ATen pads one to three last axes behind one or two others, less far than they are long.
    short = all(0 <= n < x.shape[axis] for axis, side in sides.items() for n in side)
    if x.is_floating_point() and outer in (1, 2) and x.dim() - outer in (1, 2, 3) and short:
        return F.pad(x, _last_axis_first(x, sides, outer), _ATEN_PADS[mode])
    for axis, (begin, end) in sides.items():
        positions = torch.arange(-begin, x.shape[axis] + end, device=x.device)
        x = x.index_select(axis, _source_positions(positions, x.shape[axis], mode))
    return x


def _source_positions(positions: Tensor, length: int, mode: str) -> Tensor:
    """The index in x of each position of the padded axis, counted from x's first element."""
    if mode == "edge":
        return positions.clamp(0, length - 1)
    if mode == "wrap":
        return positions.remainder(length)
    period = max(2 * (length - 1), 1)  # to the far end and back, neither end twice
    there = positions.remainder(period)
    return torch.minimum(there, period - there)


@kernel("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Ints, *, axes: Ints | None = None) -> Tensor:
    """An odd pixel is added, or cut off, at the end."""
    sides = {}
    for axis, size in zip(range(x.dim()) if axes is None else axes, shape, strict=True):
        more = size - x.shape[axis]
        begin = more // 2 if more >= 0 else -(-more // 2)
        sides[axis % x.dim()] = (begin, more - begin)
    return torch.constant_pad_nd(x, _last_axis_first(x, sides), 0)


# -- elements moved about ----------------------------------------------------------------------


@kernel("ReverseSequence")
@by_bits
def reverse_sequence(
    x: Tensor, sequence_lens: Tensor, *, batch_axis: int, time_axis: int
) -> Tensor:
    """y[b, t] = x[b, length[b] - 1 - t] where t < length[b], else x[b, t]."""
    time = torch.arange(x.shape[time_axis], device=x.device)
    length = sequence_lens.unsqueeze(1)
    index = torch.where(time < length, length - 1 - time, time)  # (batch, time)
    if time_axis < batch_axis:
        index = index.t()
    index = index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand_as(x)
    return x.gather(time_axis, index)


@kernel("Col2Im")
@by_bits
def col2im(
    x: Tensor,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Add every column's block to its place in the image: (n, c·block, l) -> (n, c, image)."""
    rank = len(image_shape)
    dilations = dilations or [1] * rank
    strides = strides or [1] * rank
    begins, ends = (pads[:rank], pads[rank:]) if pads else ([0] * rank, [0] * rank)
    sizes = [b + size + e for b, size, e in zip(begins, image_shape, ends, strict=True)]
    if rank == 2 and x.is_floating_point():
        y = F.fold(x, tuple(sizes), tuple(block_shape), tuple(dilations), 0, tuple(strides))
    else:
        index = _places(sizes, block_shape, dilations, strides, x.device).flatten()
        n, c = x.shape[0], x.shape[1] // prod(block_shape)
        y = x.new_zeros(n, c, prod(sizes)).index_add(2, index, x.reshape(n, c, -1))
        y = y.reshape(n, c, *sizes)
    for axis, (begin, size) in enumerate(zip(begins, image_shape, strict=True)):
        y = y.narrow(2 + axis, begin, size)
    return y


def _places(
    sizes: Ints, block: Ints, dilations: Ints, strides: Ints, device: torch.device
) -> Tensor:
    """The flat position in the image of each element of each block: (block..., blocks...)."""
    rank = len(sizes)
    places: Any = 0
    for axis, (size, k, dilation, stride) in enumerate(
        zip(sizes, block, dilations, strides, strict=True)
    ):
        count = (size - dilation * (k - 1) - 1) // stride + 1
        inside = torch.arange(k, device=device) * dilation
        origins = torch.arange(count, device=device) * stride
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = k, count
        places = places * size + (inside.unsqueeze(1) + origins).reshape(shape)
    return torch.as_tensor(places)
