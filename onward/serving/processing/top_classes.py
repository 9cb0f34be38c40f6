"""The best classes of scores, with their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.serving.requests import Array


def top_classes(
    scores: Array, labels: Sequence[Any], count: int, softmax: bool
) -> dict[str, Array]:
    """`labels` and `scores` of the best classes of each row, the best first.

    >>> found = top_classes(np.array([[0.1, 0.7, 0.2]]), ["a", "b", "c"], 2, softmax=False)
    >>> found["labels"].tolist()
    [['b', 'c']]
    """
    values = scores.astype(np.float32).reshape(len(scores), math.prod(scores.shape[1:]))
    if softmax:
        values = np.exp(values - values.max(1, keepdims=True))
        values /= values.sum(1, keepdims=True)
    best = np.argsort(-values, axis=1, kind="stable")[:, :count]
    names = np.empty(best.shape, object)
    for row, place in np.ndindex(*best.shape):
        number = int(best[row, place])
        names[row, place] = str(labels[number]) if number < len(labels) else str(number)
    return {"labels": names, "scores": np.take_along_axis(values, best, 1)}
