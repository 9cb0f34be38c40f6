"""The classification extension: an output's best classes as texts "score:index[:label]"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.errors import RequestInvalid
from onward.serving.requests import Array
from onward.serving.tensor_data import datatype_of


def classify(scores: Array, count: int, labels: Sequence[str] = ()) -> Array:
    """The best classes of each row: (batch, ...) -> (batch, count), (size,) -> (count,).

    >>> classify(np.array([[0.25, 0.75]], np.float32), 1, ["cat", "dog"]).tolist()
    [[b'0.750000:1:dog']]
    """
    if scores.dtype.kind in "OUSc":
        raise RequestInvalid(
            "class result not available for output due to unsupported type "
            f"'{datatype_of(scores.dtype)}'"
        )
    batch = scores.shape[0] if scores.ndim > 1 else 1
    rows = scores.reshape(batch, math.prod(scores.shape[1:]) if scores.ndim > 1 else scores.size)
    found = [_best_of_row(row, count, labels) for row in rows]
    width = min(count, rows.shape[1])
    result = np.empty((len(found), width), object)
    for index, texts in enumerate(found):
        result[index] = texts
    return result if scores.ndim > 1 else result.reshape(width)


def _best_of_row(row: Array, count: int, labels: Sequence[str]) -> list[bytes]:
    is_real = row.dtype.kind not in "biu"  # bfloat16's kind is not "f"
    # Both keys reverse the order and keep ties in the order of the classes; NaN comes last.
    key: Any = -row.astype(np.float64) if is_real else ~row
    texts = []
    for index in np.argsort(key, kind="stable")[:count].tolist():
        score = f"{float(row[index]):f}" if is_real else str(int(row[index]))
        label = f":{labels[index]}" if index < len(labels) else ""
        texts.append(f"{score}:{index}{label}".encode())
    return texts
