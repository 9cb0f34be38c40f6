"""Batches of rows of equal length, without their padding.

Rows of text are padded to one length, with a mask of ones and then zeros as an input. Training on
the padding takes time and teaches nothing: `trimmed_batches` sorts rows by length and cuts off what
all rows of a batch have as padding. A run of the model shows first that its outputs stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.compress.calibration import Array, Calibration, Feeds, Labelled
from onward.compress.distillation.joined_batches import ROWS, count_rows, join_batches, joined
from onward.errors import OnwardError
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

_SEARCHED = 16  # batches in which a padded row is looked for
_CLOSE = 1e-4  # of the largest number: outputs that are equal


def training_batches(model: Source, data: Calibration, rows: int = ROWS) -> Calibration:
    """The batches to train with: of about this many rows, without padding where it is possible.

    Args:
        model: the float model; it decides whether padding can be cut off
        data: the batches; a model that takes any number of rows is assumed
        rows: of a batch
    """
    trimmed = trimmed_batches(model, data, rows)
    if trimmed is not None:
        return trimmed
    return Calibration(
        lambda: join_batches(data.labelled_batches(), rows), data.inputs, target=data.target
    )


def trimmed_batches(model: Source, data: Calibration, rows: int = ROWS) -> Calibration | None:
    """Batches of rows of equal length, as far as there are enough, without padding.

    None if no input is a mask, no row has padding, or the outputs change without it.
    """
    for feeds in itertools.islice(data.batches(), _SEARCHED):
        padding = _find_padding(data.inputs, feeds)
        if padding is not None:
            break
    else:
        return None
    if not _keeps_outputs(model, feeds, padding):
        return None
    return Calibration(lambda: _by_length(data, padding, rows), data.inputs, target=data.target)


@dataclass(frozen=True)
class _Padding:
    """A mask, and the axes that have its length.

    Attributes:
        mask: the name of the input
        axes: of each input
    """

    mask: str
    axes: Mapping[str, Sequence[int]]

    def lengths(self, feeds: Feeds) -> Array:
        """The length of each row: up to the last position that is not 0."""
        mask = np.asarray(feeds[self.mask]) != 0
        return np.asarray(mask.shape[1] - np.argmax(mask[:, ::-1], axis=1))

    def trim(self, batch: Labelled) -> Labelled:
        """A batch up to the length of its longest row."""
        feeds, targets = batch
        whole, longest = np.shape(feeds[self.mask])[1], int(self.lengths(feeds).max())
        cut = {name: _cut(feed, self.axes[name], longest) for name, feed in feeds.items()}
        if np.ndim(targets) >= 2 and np.shape(targets)[1] == whole:  # a label for each position
            targets = _cut(targets, [1], longest)
        return cut, targets


def _cut(array: Any, axes: Sequence[int], size: int) -> Array:
    found = np.asarray(array)
    return found[tuple(slice(size if axis in axes else None) for axis in range(found.ndim))]


def _find_padding(inputs: Sequence[Any], feeds: Feeds) -> _Padding | None:
    """The mask of a batch in which a row has padding."""
    rows = count_rows(feeds)
    if any(np.ndim(feed) == 0 or len(feed) != rows for feed in feeds.values()):
        return None
    for arg in inputs:
        feed = np.asarray(feeds.get(arg.name, ()))
        if feed.ndim != 2 or feed.dtype.kind not in "iub" or not _is_padded_mask(feed):
            continue
        axes = {
            each.name: [
                axis
                for axis in range(1, np.ndim(feeds[each.name]))
                if np.shape(feeds[each.name])[axis] == feed.shape[1]
                and not isinstance(each.shape[axis], int)
            ]
            for each in inputs
            if each.name in feeds
        }
        if axes[arg.name]:
            return _Padding(arg.name, axes)
    return None


def _is_padded_mask(feed: Array) -> bool:
    """Whether each row is ones and then zeros, and one has zeros."""
    mask = feed.astype(np.int64)
    if not mask.size or not np.isin(mask, (0, 1)).all() or not mask[:, 0].all():
        return False
    return bool((np.diff(mask, axis=1) <= 0).all()) and not mask.all()


def _keeps_outputs(model: Source, feeds: Feeds, padding: _Padding) -> bool:
    """Whether the rows with the most padding give the same outputs without it."""
    lengths = padding.lengths(feeds)
    chosen = {name: np.asarray(feed)[lengths == lengths.min()] for name, feed in feeds.items()}
    try:
        session = InferenceSession(model, SessionOptions(log_severity_level=4))
        whole = session.run(None, chosen)
        cut = session.run(None, padding.trim((chosen, None))[0])
    except (OnwardError, RuntimeError, ValueError):
        return False
    return all(_begins_with(y, z) for y, z in zip(whole, cut, strict=True))


def _begins_with(y: Any, z: Any) -> bool:
    """Whether an output is the beginning of another, along each axis."""
    if np.ndim(y) != np.ndim(z) or any(a < b for a, b in zip(np.shape(y), np.shape(z))):
        return False
    kept = np.asarray(y)[tuple(slice(size) for size in np.shape(z))]
    if kept.dtype.kind != "f":
        return bool(np.array_equal(kept, z))
    most = float(np.abs(kept).max(initial=0.0)) * _CLOSE
    return bool(np.allclose(kept, z, rtol=0, atol=most))


def _by_length(data: Calibration, padding: _Padding, rows: int) -> Iterator[Labelled]:
    """Full batches of one length as they come; at the end what is left, sorted by length."""
    waiting: dict[tuple[Any, ...], list[Labelled]] = {}  # by shapes and length
    for feeds, targets in data.labelled_batches():
        shapes = tuple((name, np.shape(feed)[1:]) for name, feed in sorted(feeds.items()))
        lengths = padding.lengths(feeds)
        for length in np.unique(lengths).tolist():
            held = waiting.setdefault((shapes, length), [])
            held.append(_rows_of((feeds, targets), lengths == length))
            while sum(count_rows(each[0]) for each in held) >= rows:
                full = joined(held)
                yield padding.trim(_rows_of(full, slice(rows)))
                held[:] = [_rows_of(full, slice(rows, None))]
    left = [each for key in sorted(waiting) for each in waiting[key] if count_rows(each[0])]
    for batch in join_batches(left, rows):
        yield padding.trim(batch)


def _rows_of(batch: Labelled, chosen: Any) -> Labelled:
    feeds, targets = batch
    some = {name: np.asarray(feed)[chosen] for name, feed in feeds.items()}
    return some, None if targets is None else np.asarray(targets)[chosen]
