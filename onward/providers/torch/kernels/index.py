"""Gather, scatter and select elements by indices that are tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from onward.graph.operator_table import OpTable
from onward.providers.torch.dtypes import Float, Floats, Int, Ints, Tensor
from onward.providers.torch.kernels.emulated_dtypes import by_bits, by_order

kernel = OpTable()

Index = list[Tensor | None]  # for each axis, the positions; None for all of them
_REDUCTIONS = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def _wrapped(index: Tensor, length: int) -> Tensor:
    """Indices from the start; a negative one counts from the end."""
    return torch.where(index < 0, index + length, index)


# -- gather ------------------------------------------------------------------------------------


@kernel("Gather")
def gather(x: Tensor, indices: Tensor | Int, *, axis: int) -> Tensor:
    """y[..., i, ...] = x[..., indices[i], ...] at `axis`."""
    if not isinstance(indices, Tensor):
        return x.select(axis, indices)
    return _take_at(x, [*[None] * (axis % x.dim()), indices])


@kernel("GatherElements")
@by_bits
def gather_elements(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    """y[i, j] = x[indices[i, j], j] (axis 0)."""
    return x.gather(axis, _wrapped(indices.long(), x.shape[axis]))


@kernel("GatherND")
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int) -> Tensor:
    """y[b, i] = x[b, indices[b, i, 0], indices[b, i, 1], ...]."""
    batch = []
    for axis in range(batch_dims):
        shape = [1] * (indices.dim() - 1)
        shape[axis] = x.shape[axis]
        batch.append(torch.arange(x.shape[axis], device=x.device).reshape(shape))
    if not indices.shape[-1]:  # all of x, or of its batch, at each place
        ones = [1] * (indices.dim() - 1 - batch_dims)
        whole = x.reshape(*x.shape[:batch_dims], *ones, *x.shape[batch_dims:])
        return whole.expand(*indices.shape[:-1], *x.shape[batch_dims:])
    return _take_at(x, [*batch, *indices.unbind(-1)])


def _take_at(x: Tensor, index: Index) -> Tensor:
    """x[index], without the copy to the host that torch makes for an index of rank 0."""
    y: Tensor = torch.ops.aten.index.Tensor(x, index)
    return y


# -- scatter -----------------------------------------------------------------------------------


@kernel("Scatter", "ScatterElements")
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int, reduction: str = "none"
) -> Tensor:
    """From y = x on: y[indices[i, j], j] = f(y[indices[i, j], j], updates[i, j]) (axis 0)."""
    index = _wrapped(indices.long(), x.shape[axis])
    return _scatter_of(reduction)(x, index, updates, axis, reduction)


@kernel("ScatterND")
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str) -> Tensor:
    """From y = x on: y[indices[i, 0], indices[i, 1], ...] = f(y[...], updates[i])."""
    columns = indices.unbind(-1)  # one for each axis that they index
    if reduction == "none":
        return _put(x, [*columns], updates)
    flat: Any = 0
    for column, length in zip(columns, x.shape):
        flat = flat * length + _wrapped(column, length)
    rows = x.reshape(prod(x.shape[: len(columns)]), *x.shape[len(columns) :])
    updates = updates.reshape(columns[0].numel(), *rows.shape[1:])
    flat = flat.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(updates)
    return _scatter_of(reduction)(rows, flat, updates, 0, reduction).reshape(x.shape)


@by_bits
def _put(x: Tensor, index: Index, updates: Tensor) -> Tensor:
    return x.index_put(index, updates)


def _scatter(x: Tensor, index: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
    if reduction == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _REDUCTIONS[reduction])


_scatter_by_bits = by_bits(_scatter)
_scatter_by_order = by_order(_scatter)


def _scatter_of(reduction: str) -> Callable[..., Tensor]:
    """The scatter of a reduction: max and min depend on order, others only on bits."""
    return _scatter_by_order if reduction in ("min", "max") else _scatter_by_bits


@kernel("TensorScatter")
@by_bits
def tensor_scatter(
    past: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int, mode: str
) -> Tensor:
    """From y = past on: y[b, ..., write_indices[b] + t, ...] = update[b, ..., t, ...]."""
    length = update.shape[axis]
    if write_indices is None:
        return past.slice_scatter(update, axis, 0, length)
    position = write_indices.unsqueeze(1) + torch.arange(length, device=past.device)
    if mode == "circular":
        position = position.remainder(past.shape[axis])
    shape = [1] * past.dim()
    shape[0], shape[axis] = position.shape
    return past.scatter(axis, position.reshape(shape).expand_as(update), update)


# -- choose ------------------------------------------------------------------------------------


@kernel("Compress")
@by_bits
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """The slices where the condition holds; those beyond its end are left out."""
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    return x.index_select(axis, condition.nonzero().flatten())


@kernel("NonZero")
@by_bits(results=0)
def non_zero(x: Tensor) -> Tensor:
    return x.nonzero().t()


@kernel("OneHot")
def one_hot(indices: Tensor, depth: Float, values: Tensor, *, axis: int) -> Tensor:
    """y[..., c, ...] = values[1] if c is the index, else values[0]; c runs at `axis`."""
    classes = torch.arange(depth, dtype=torch.int64, device=indices.device)
    index = _wrapped(indices.long(), len(classes)).unsqueeze(axis)
    shape = [1] * index.dim()
    shape[axis] = len(classes)
    return torch.where(index == classes.reshape(shape), values[1], values[0])


@kernel("Unique")
@by_order
def unique(x: Tensor, *, axis: int | None = None, sorted: int, outputs: int) -> tuple[Tensor, ...]:
    """Distinct elements (slices at `axis`), first positions, inverse indices, counts."""
    y, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True, dim=axis)
    inverse = inverse.flatten()
    if outputs == 1 and sorted:
        return (y,)
    positions = torch.arange(inverse.numel(), device=x.device)
    first = torch.zeros_like(counts).scatter_reduce(
        0, inverse, positions, "amin", include_self=False
    )
    if sorted:
        return y, first, inverse, counts
    order = first.argsort()  # of the sorted elements, by first occurrence
    y = y.index_select(0 if axis is None else axis, order)
    return y, first[order], order.argsort()[inverse], counts[order]


# -- boxes -------------------------------------------------------------------------------------


@kernel("NonMaxSuppression")
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: Int | None = None,
    iou_threshold: Float | None = None,
    score_threshold: Float | None = None,
    *,
    center_point_box: int,
) -> Tensor:
    """(batch, class, box) of the boxes kept, best first: none overlaps a better one too much.

    Greedy, so one box after the other; on the CPU, where a step costs less than a launch.
    """
    corners = _corners(boxes.cpu(), bool(center_point_box))  # (batch, box, 4)
    kept = [
        (batch, label, box)
        for batch, of_batch in enumerate(scores.cpu())
        for label, of_class in enumerate(of_batch)
        for box in _suppressed(
            corners[batch],
            of_class,
            max_output_boxes_per_class or 0,
            iou_threshold or 0.0,
            score_threshold,
        )
    ]
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, center: bool) -> Tensor:
    """Boxes as (low, high) corners: (..., 2 corners, 2 axes)."""
    if center:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return torch.stack([middle - half, middle + half], -2)
    return boxes.reshape(*boxes.shape[:-1], 2, 2).sort(-2).values


def _suppressed(
    corners: Tensor, scores: Tensor, most: int, iou: float, threshold: float | None
) -> list[int]:
    order = scores.argsort(descending=True, stable=True)
    if threshold is not None:
        order = order[scores[order] > threshold]
    kept: list[int] = []
    while len(kept) < most and order.numel():
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[_overlap(corners[best], corners[order]) <= iou]
    return kept


def _overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union; 0 where there is no area."""
    low = torch.maximum(box[0], others[:, 0])
    high = torch.minimum(box[1], others[:, 1])
    shared = (high - low).clamp(min=0).prod(-1)
    area = (box[1] - box[0]).prod(-1)
    areas = (others[:, 1] - others[:, 0]).prod(-1)
    return torch.where(shared > 0, shared / (area + areas - shared), 0.0)


# -- text --------------------------------------------------------------------------------------


@kernel("TfIdfVectorizer")
def tf_idf_vectorizer(
    x: Tensor,
    *,
    mode: str,
    min_gram_length: int,
    max_gram_length: int,
    max_skip_count: int,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints,
    weights: Floats | None = None,
) -> Tensor:
    """How often each n-gram of the pool occurs, up to `max_skip_count` between its words."""
    rows = x if x.dim() > 1 else x.unsqueeze(0)
    pool = torch.tensor(pool_int64s, dtype=x.dtype, device=x.device)
    starts = [*ngram_counts, len(pool_int64s)]
    found = []  # (rows, n-grams of one length) each
    for n in range(1, len(ngram_counts) + 1):
        grams = pool[starts[n - 1] : starts[n]].reshape(-1, n)
        counts = x.new_zeros(rows.shape[0], grams.shape[0])
        if min_gram_length <= n <= max_gram_length:
            for skip in range(max_skip_count + 1 if n > 1 else 1):
                counts += _occurrences(rows, grams, skip + 1)
        found.append(counts)
    counts = torch.cat(found, 1).float()
    if mode == "IDF":
        counts = counts.clamp(max=1)
    if mode != "TF" and weights is not None:
        counts = counts * torch.tensor(weights, device=x.device)
    y = counts.new_zeros(rows.shape[0], max(ngram_indexes) + 1)
    y = y.index_add(1, torch.tensor(ngram_indexes, device=x.device), counts)
    return y if x.dim() > 1 else y[0]


def _occurrences(rows: Tensor, grams: Tensor, distance: int) -> Tensor:
    """How often each n-gram occurs in each row with its words `distance` apart."""
    n = grams.shape[1]
    places = rows.shape[1] - distance * (n - 1)
    if places <= 0:
        return rows.new_zeros(rows.shape[0], grams.shape[0])
    found = rows.new_ones((), dtype=torch.bool)
    for word in range(n):
        window = rows.narrow(1, word * distance, places)
        found = found & (window.unsqueeze(2) == grams[:, word])  # (row, place, n-gram)
    return found.sum(1)
