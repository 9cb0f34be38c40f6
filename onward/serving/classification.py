"""The classification extension: the top classes of an output as "score:index:label"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.errors import RequestInvalid
from onward.serving.requests import Array


def classify(name: str, scores: Array, classes: int, labels: Sequence[str]) -> Array:
    """The `classes` highest of each row, best first, as an object array of bytes.

    The first of two or more axes is the batch; what follows it is one row.
    """
    if scores.dtype.kind not in "iuf" and scores.dtype.name != "bfloat16":
        raise RequestInvalid(f"output '{name}' cannot be classified: it has no numbers")
    rows = scores.reshape(scores.shape[0], -1) if scores.ndim > 1 else scores.reshape(1, -1)
    count = min(classes, rows.shape[1])
    found = np.empty((rows.shape[0], count), object)
    for i, row in enumerate(rows):
        order = np.argsort(-row.astype(np.float64), kind="stable")[:count]
        for j, index in enumerate(order.tolist()):
            found[i, j] = _text(row[index], index, labels).encode()
    return found if scores.ndim > 1 else found[0]


def _text(score: Any, index: int, labels: Sequence[str]) -> str:
    text = f"{score}:{index}" if isinstance(score, np.integer) else f"{float(score):f}:{index}"
    return f"{text}:{labels[index]}" if index < len(labels) else text
