"""Join the tensors of several requests into one batch, and split its outputs again.

feeds = join_feeds(layout, requests, rows)              # pad lengths, concatenate, fill up rows
answers = split_outputs(layout, outputs, requests, rows)  # cut rows and lengths back
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.errors import ServingError
from onward.serving.requests import Array

Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """An input whose length along `axis` varies from request to request."""

    axis: int
    value: Any = 0
    sizes: tuple[int, ...] = ()  # lengths to pad to; none: the longest of the batch

    def length(self, arrays: Sequence[Array]) -> int:
        """The length that all of these are padded to."""
        return fixed_size(max(array.shape[self.axis] for array in arrays), self.sizes)


@dataclass(frozen=True, slots=True)
class MaskInput:
    """An input that is 1 where a padded input has data."""

    source: str
    dtype: np.dtype[Any]
    rank: int


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where the batch axis is, what is padded, and how it is cut back."""

    axes: Mapping[str, int]  # of inputs and outputs
    fixed_sizes: tuple[int, ...] = ()  # ascending: a batch is filled up to the next of them
    padded: Mapping[str, PaddedInput] = field(default_factory=dict)
    cuts: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # output: axis, input
    masks: Mapping[str, MaskInput] = field(default_factory=dict)  # filled if a client does not
    zero_filled: frozenset[str] = frozenset()  # inputs that are 0 in rows without a request

    def fill_masks(self, feeds: dict[str, Array]) -> None:
        """Add the masks that a request did not give: 1 for all of its data."""
        for name, mask in self.masks.items():
            if name in feeds or mask.source not in feeds:
                continue
            shape = feeds[mask.source].shape
            if len(shape) != mask.rank:  # (batch, length) or (length, batch)
                sizes = {self.axes[name]: shape[self.axes[mask.source]]}
                length = shape[self.padded[mask.source].axis]
                shape = tuple(sizes.get(axis, length) for axis in range(2))
            feeds[name] = np.ones(shape, mask.dtype)


def fixed_size(size: int, sizes: Sequence[int]) -> int:
    """The first of the ascending `sizes` that is not smaller; the size itself if none is."""
    return next((each for each in sizes if each >= size), size)


def join_feeds(layout: BatchLayout, requests: Sequence[Feeds], rows: Sequence[int]) -> Feeds:
    """The feeds of one batch. All requests have the same inputs."""
    first = requests[0]
    total = sum(rows)
    target = fixed_size(total, layout.fixed_sizes) if total else 0
    if len(requests) == 1 and target == total and not layout.padded:
        return first
    feeds: dict[str, Array] = {}
    for name in first:
        if name not in layout.axes:  # in place of an initializer: its request runs alone
            feeds[name] = first[name]
            continue
        arrays = [request[name] for request in requests]
        axis, padded = layout.axes[name], layout.padded.get(name)
        if padded is not None and _needs_padding(padded, arrays):
            feeds[name] = _join_padded(arrays, axis, padded, target, rows)
            continue
        if target > total:
            arrays.append(_filling(arrays[-1], axis, target - total, name in layout.zero_filled))
        feeds[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)
    return feeds


def split_outputs(
    layout: BatchLayout,
    outputs: Mapping[str, Array],
    requests: Sequence[Feeds],
    rows: Sequence[int],
) -> list[dict[str, Array]]:
    """The outputs of each request: views of the batch's outputs."""
    total = sum(rows)
    target = fixed_size(total, layout.fixed_sizes) if total else 0
    answers: list[dict[str, Array]] = [{} for _ in requests]
    for name, output in outputs.items():
        axis = layout.axes[name]
        if len(requests) == 1 and target == total:
            answers[0][name] = output
        elif output.ndim <= axis or output.shape[axis] != target:
            raise ServingError(
                f"output {name!r} has the shape {list(output.shape)} for a batch of {target} rows: "
                f"axis {axis} is not its batch axis"
            )
        else:
            moved = output.swapaxes(0, axis) if axis else output
            start = 0
            for answer, count in zip(answers, rows):
                stop = start + count
                part = moved[start:stop]
                answer[name] = part.swapaxes(0, axis) if axis else part
                start = stop
        if name in layout.cuts:
            _cut_back(layout, name, answers, requests)
    return answers


def _cut_back(
    layout: BatchLayout, name: str, answers: list[dict[str, Array]], requests: Sequence[Feeds]
) -> None:
    axis, source = layout.cuts[name]
    before = (slice(None),) * axis
    for answer, request in zip(answers, requests):
        length = request[source].shape[layout.padded[source].axis]
        answer[name] = answer[name][(*before, slice(0, length))]


def _needs_padding(padded: PaddedInput, arrays: Sequence[Array]) -> bool:
    length = padded.length(arrays)
    return any(array.shape[padded.axis] != length for array in arrays)


def _join_padded(
    arrays: Sequence[Array], axis: int, padded: PaddedInput, target: int, rows: Sequence[int]
) -> Array:
    shape = list(arrays[0].shape)
    shape[axis], shape[padded.axis] = target, padded.length(arrays)
    joined = np.full(shape, padded.value, arrays[0].dtype)
    place: list[slice] = [slice(None)] * len(shape)
    start = 0
    for array, count in zip(arrays, rows):
        place[axis] = slice(start, start + count)
        place[padded.axis] = slice(0, array.shape[padded.axis])
        joined[tuple(place)] = array
        start += count
    place[padded.axis] = slice(None)
    if start < target:  # like the last row, which the model is known to take
        last = [*place]
        last[axis], place[axis] = slice(start - 1, start), slice(start, target)
        joined[tuple(place)] = joined[tuple(last)]
    return joined


def _filling(array: Array, axis: int, count: int, with_zeros: bool) -> Array:
    """Rows without a request: like the last row, which the model is known to take."""
    last = np.take(array, [-1], axis)
    filling: Array = np.repeat(last, count, axis)
    return np.zeros_like(filling) if with_zeros else filling
