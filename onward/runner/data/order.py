"""The order of rows: shuffled, class-balanced, split; pure functions of a seed and an epoch.

Rows are numbered by position, from 0. An order is an int64 array of positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onward import settings
from onward.errors import DataError
from onward.runner.data.row_random import random_bits

Array = np.ndarray[Any, Any]

_EPOCH, _SPLIT, _CLASSES, _REPEATS = range(4)  # streams of random numbers
_SHARE = settings.number(0.0, 1.0, below=True)


def positions(seed: int, epoch: int, count: int) -> Array:
    """Every position of `count` rows once, in an order that depends on seed and epoch.

    >>> sorted(positions(seed=0, epoch=3, count=4).tolist())
    [0, 1, 2, 3]
    """
    return _shuffle(np.arange(count), seed, epoch, _EPOCH)


def class_balanced(labels: Array, seed: int, epoch: int) -> Array:
    """Positions in random order in which each class occurs equally often.

    About as many as there are rows. Rows of rare classes are repeated, rows of frequent ones are
    left out; within a class, no row is used twice more than another.

    >>> labels = np.array(["cat", "dog", "cat", "cat", "cat", "cat"])
    >>> sorted(labels[class_balanced(labels, seed=0, epoch=0)].tolist())
    ['cat', 'cat', 'cat', 'dog', 'dog', 'dog']
    """
    labels = np.asarray(labels)
    if not len(labels):
        return np.zeros(0, np.int64)
    classes, codes = np.unique(labels, return_inverse=True)
    each = max(1, round(len(labels) / len(classes)))
    chosen = []
    for code in range(len(classes)):
        rows = np.flatnonzero(codes == code)
        rounds = -(-each // len(rows))
        again = [_shuffle(rows, seed, epoch, _REPEATS + turn) for turn in range(rounds)]
        chosen.append(np.concatenate(again)[:each])
    places = np.concatenate(chosen)
    return places[_shuffle(np.arange(len(places)), seed, epoch, _CLASSES)]


def split(count: int, share: float, seed: int, labels: Array | None = None) -> tuple[Array, Array]:
    """The positions of training and of validation rows; `share` of the rows is held out.

    With labels, each class is held out in the same proportion (stratified), as far as whole rows
    allow, and no class loses its last training row. Both arrays are sorted.

    >>> train, validation = split(10, 0.2, seed=0)
    >>> len(train), len(validation), len(np.intersect1d(train, validation))
    (8, 2, 0)
    """
    share = _SHARE("share", share)
    wanted = min(max(round(count * share), 1 if share else 0), max(count - 1, 0))
    rows = np.arange(count)
    if labels is None:
        held = _shuffle(rows, seed, 0, _SPLIT)[:wanted]
    else:
        held = _stratified(np.asarray(labels), count, wanted, seed)
    is_held = np.zeros(count, bool)
    is_held[held] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def _stratified(labels: Array, count: int, wanted: int, seed: int) -> Array:
    if labels.shape != (count,):
        raise DataError(
            f"a stratified split of {count} rows needs one label for each, not an array of "
            f"shape {labels.shape}\ngive the target column, or no labels"
        )
    if not count:
        return np.zeros(0, np.int64)
    _, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    shares = sizes * (wanted / count)
    taken = np.floor(shares).astype(np.int64)
    # largest remainder: the rows still missing come from the classes that lost most by rounding
    rest = np.where(taken < sizes - 1, shares - taken, -1.0)
    order = np.argsort(-rest, kind="stable")
    missing = min(wanted - int(taken.sum()), int((rest >= 0).sum()))
    taken[order[:missing]] += 1
    held = [
        _shuffle(np.flatnonzero(codes == code), seed, 0, _SPLIT)[:some]
        for code, some in enumerate(taken)
    ]
    return np.concatenate(held)


def _shuffle(rows: Array, seed: int, epoch: int, stream: int) -> Array:
    # The lowest bits are the place: to sort numbers is faster than to sort places by them.
    mask = np.uint64((1 << len(rows).bit_length()) - 1)
    bits = random_bits(seed, epoch, rows, stream) & ~mask | np.arange(len(rows), dtype=np.uint64)
    bits.sort()
    shuffled: Array = rows[(bits & mask).astype(np.int64)]
    return shuffled
