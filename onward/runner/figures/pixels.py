"""Images that a model reads as pictures for people: bytes, and the content of a PNG file."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_LONGEST_SIDE = 256  # pixels; larger images are thinned out
_SMALLEST_SIDE = 4  # below, an array of three axes is not an image
_CHANNELS = (1, 3, 4)
_PNG_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # grey, RGB, RGB and alpha


def to_pixels(array: Array) -> Array | None:
    """An array of one image as bytes (height, width, channels); None if it is not an image.

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
