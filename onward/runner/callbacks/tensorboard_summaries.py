"""The parts of TensorBoard's summaries that need numbers: histograms, pictures, texts, settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.runner.figures.pixels import to_pixels

Array = np.ndarray[Any, Any]

_BINS = 64
_MOST_NUMBERS = 100_000  # of a tensor: more are sampled evenly


def histogram(values: Array) -> dict[str, Any] | None:
    """The fields of a HistogramProto of the finite numbers of a tensor; None if there are none."""
    flat = np.asarray(values).reshape(-1)
    every = -(-flat.size // _MOST_NUMBERS) or 1
    numbers = flat[::every].astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return None
    counts, edges = np.histogram(numbers, bins=_BINS)
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    return {
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "num": float(numbers.size),
        "sum": float(numbers.sum()),
        "sum_squares": float(numbers @ numbers),
        # the count of a bucket is of the numbers up to its limit: an empty one comes first
        "bucket_limit": [float(edges[first]), *edges[first + 1 : last + 2].tolist()],
        "bucket": [0.0, *counts[first : last + 1].astype(float).tolist()],
    }


def picture_of(feeds: Mapping[str, Any]) -> Array | None:
    """The first feed of a row that is an image, as pixels (height, width, channels); else None."""
    arrays = (np.asarray(feed) for feed in feeds.values())
    images = (to_pixels(array) for array in arrays if array.ndim >= 3)
    return next((pixels for pixels in images if pixels is not None), None)


def settings_table(settings: Mapping[str, Any]) -> str:
    """Settings as a table in Markdown.

    >>> print(settings_table({"epochs": 3}))
    | setting | value |
    |---|---|
    | epochs | 3 |
    """
    cells = ((name, str(value).replace("|", "\\|")) for name, value in settings.items())
    rows = [f"| {name} | {value} |" for name, value in cells]
    return "\n".join(["| setting | value |", "|---|---|", *rows])


def plain_settings(settings: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """The settings as hyperparameters: numbers, flags and texts; those that are None are left out.

    >>> plain_settings({"epochs": 3, "name": None, "freeze": ["a", "b"]})
    {'epochs': 3, 'freeze': 'a, b'}
    """
    return {name: _plain(value) for name, value in settings.items() if value is not None}


def _plain(value: Any) -> bool | float | str:
    if isinstance(value, (bool, int, float, str)):
        return value
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
