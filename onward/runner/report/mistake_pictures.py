"""Mistakes for a page: inputs that are images as PNG data URIs, others as their first numbers."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onward.runner.events import Mistake

Array = np.ndarray[Any, Any]
_MOST = 60  # mistakes on a page
_LONGEST_SIDE = 256  # pixels; larger images are thinned out
_SMALLEST_SIDE = 4  # below, an array of three axes is no image
_NUMBERS = 12  # of an input that is no image
_CHANNELS = (1, 3, 4)
_PNG_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # grey, RGB, RGB and alpha


def describe_mistakes(mistakes: Iterable[Mistake], classes: Sequence[Any]) -> list[dict[str, Any]]:
    """Label, answer and inputs of each mistake, as JSON."""
    return [
        {
            "position": int(mistake.position),
            "label": name_class(mistake.label, classes),
            "answer": name_class(mistake.answer, classes),
            "inputs": [
                {"name": str(name), **_describe_input(feed)} for name, feed in mistake.feeds.items()
            ],
        }
        for mistake, _ in zip(mistakes, range(_MOST))
    ]


def name_class(label: Any, classes: Sequence[Any]) -> str:
    """The name of a class that is given by its name, or else by its number.

    >>> name_class("cat", ["cat", "dog"]), name_class(np.int64(1), ["cat", "dog"])
    ('cat', 'dog')
    """
    if isinstance(label, np.generic):
        label = label.item()
    if label in classes or isinstance(label, bool) or not isinstance(label, int):
        return str(label)
    return str(classes[label]) if 0 <= label < len(classes) else str(label)


def _describe_input(feed: Any) -> dict[str, Any]:
    array = np.asarray(feed)
    pixels = to_pixels(array)
    if pixels is not None:
        height, width = pixels.shape[:2]
        coded = base64.b64encode(encode_png(pixels)).decode()
        return {"image": f"data:image/png;base64,{coded}", "width": width, "height": height}
    flat = array.reshape(-1)
    shown = [_format_value(value) for value in flat[:_NUMBERS].tolist()]
    return {"numbers": ", ".join(shown) + (", ..." if flat.size > _NUMBERS else "")}


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:200]


def to_pixels(array: Array) -> Array | None:
    """An array of one image as bytes (height, width, channels); None if it is no image.

    Channels may be first or last. Bytes stay; other numbers are stretched from their least to
    their greatest, since a model's input is usually standardized.
    """
    while array.ndim > 3 and array.shape[0] == 1:  # the batch
        array = array[0]
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3 and array.shape[0] in _CHANNELS and array.shape[2] not in _CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in _CHANNELS or array.dtype.kind not in "biuf":
        return None
    if min(array.shape[:2]) < _SMALLEST_SIDE:
        return None
    stride = -(-max(array.shape[:2]) // _LONGEST_SIDE)
    array = array[::stride, ::stride]
    if array.dtype == np.uint8:
        return array
    numbers = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = numbers.min(), numbers.max()
    pixels: Array = np.round((numbers - low) * (255.0 / ((high - low) or 1.0))).astype(np.uint8)
    return pixels


def encode_png(pixels: Array) -> bytes:
    """The content of a PNG file; written here, so that a page needs no Pillow.

    >>> encode_png(np.zeros((4, 4, 1), np.uint8))[1:4]
    b'PNG'
    """
    height, width, channels = pixels.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with filter 0
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR_TYPES[channels], 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
