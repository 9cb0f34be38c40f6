"""The parts of TensorBoard's summaries that need numbers: histograms, pictures, texts, settings."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

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
    """The first feed of a row that is an image, as pixels (height, width, 1 or 3); else None."""
    for feed in feeds.values():
        image = np.asarray(feed)
        if image.ndim == 4 and image.shape[0] == 1:
            image = image[0]
        if image.ndim != 3 or image.dtype.kind not in "fui":
            continue
        if image.shape[0] in (1, 3):  # (channels, height, width)
            image = image.transpose(1, 2, 0)
        if image.shape[2] in (1, 3) and min(image.shape[:2]) > 1:
            return _to_pixels(image)
    return None


def _to_pixels(image: Array) -> Array:
    """Numbers of any scale as bytes: the smallest is black, the largest white."""
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    image = np.nan_to_num(image.astype(np.float32), posinf=0, neginf=0)
    low, high = float(image.min()), float(image.max())
    scaled = (image - low) * (255 / (high - low) if high > low else 0)
    return np.ascontiguousarray(scaled.round().astype(np.uint8))


def png(pixels: Array) -> bytes:
    """Pixels (height, width, 1 or 3) as the content of a PNG file."""
    height, width, channels = pixels.shape
    color = {1: 0, 3: 2}[channels]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(
            ">I", zlib.crc32(kind + data)
        )  # fmt: skip

    head = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    body = zlib.compress(rows.tobytes())
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


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
