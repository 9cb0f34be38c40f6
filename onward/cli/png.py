"""A picture and its PNG file, with numpy and zlib alone: lines, boxes, small letters."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.graph.paths import writing

Array = np.ndarray[Any, Any]
Colour = tuple[int, int, int]
Point = tuple[float, float]  # x to the right, y down, in pixels

GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7  # and two rows below the line, for g, j, p, q, y and the comma
_SIGNATURE = b"\x89PNG\r\n\x1a\n"

# each letter as nine rows of five dots, two hexadecimal digits a row
_LETTERS = """
    0 0e11131519110e0000  1 040c040404040e0000  2 0e11010204081f0000  3 0e11010601110e0000
    4 02060a121f02020000  5 1f101e0101110e0000  6 0608101e11110e0000  7 1f0102040404040000
    8 0e11110e11110e0000  9 0e11110f01020c0000  . 00000000000c0c0000  , 00000000000c040800
    % 181902040813030000  - 0000000e0000000000  : 000c0c000c0c000000  a 00000e010f110f0000
    b 1010161911111e0000  c 00000e1010110e0000  d 01010d1311110f0000  e 00000e111f100e0000
    f 0609081c0808080000  g 00000f1111110f010e  h 101016191111110000  i 04000c0404040e0000
    j 02000602020202120c  k 101012141814120000  l 0c04040404040e0000  m 00001a151511110000
    n 000016191111110000  o 00000e1111110e0000  p 00001e111119161010  q 00000f1111130d0101
    r 000016191010100000  s 00000e100e011e0000  t 08081c080809060000  u 0000111111130d0000
    v 00001111110a040000  w 0000111115150a0000  x 0000110a040a110000  y 0000111111110f010e
    z 00001f0204081f0000
"""
_FONT = dict(re.findall(r"(\S) (\w+)", _LETTERS))


class Picture:
    """Pixels to draw on; what is drawn has soft edges."""

    def __init__(self, width: int, height: int, background: Colour = (255, 255, 255)) -> None:
        self.width, self.height = width, height
        self.pixels = np.empty((height, width, 3), np.float32)
        self.pixels[:] = background

    def box(self, corner: Point, opposite: Point, colour: Colour, opacity: float = 1.0) -> None:
        """Fill a rectangle."""
        (left, top), (right, bottom) = corner, opposite
        rows, columns = slice(round(top), round(bottom)), slice(round(left), round(right))
        self._blend(rows, columns, np.float32(opacity), colour)

    def line(
        self, points: Sequence[Point], colour: Colour, width: float = 1.0, opacity: float = 1.0
    ) -> None:
        """Join the points with straight lines."""
        cover = np.zeros((self.height, self.width), np.float32)
        for start, end in zip(points, [*points[1:], points[-1]]):
            self._cover(cover, start, end, width / 2)
        self._blend(slice(None), slice(None), cover * opacity, colour)

    def _cover(self, cover: Array, start: Point, end: Point, radius: float) -> None:
        """How much of each pixel a line from start to end covers; the most so far is kept."""
        (x0, y0), (x1, y1) = start, end
        left, right = _reach(x0, x1, radius, self.width)
        top, bottom = _reach(y0, y1, radius, self.height)
        y, x = np.mgrid[top:bottom, left:right] + 0.5
        length = (x1 - x0) ** 2 + (y1 - y0) ** 2
        along = ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / (length or 1.0)
        along = np.clip(along, 0.0, 1.0)
        distance = np.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0))
        part = cover[top:bottom, left:right]
        np.maximum(part, np.clip(radius + 0.5 - distance, 0.0, 1.0), out=part)

    def text(
        self, at: Point, words: str, colour: Colour, *, scale: int = 2, align: float = 0.0
    ) -> None:
        """Write on the line that begins (align 0), has its middle (0.5) or ends (1) at a point."""
        x = round(at[0] - align * text_width(words, scale))
        y = round(at[1]) - GLYPH_HEIGHT * scale
        for letter in words:
            if letter in _FONT:
                dots = np.kron(_dots(letter), np.ones((scale, scale), np.float32))
                height, width = dots.shape
                self._blend(slice(y, y + height), slice(x, x + width), dots, colour)
            x += (GLYPH_WIDTH + 1) * scale

    def _blend(self, rows: slice, columns: slice, cover: Any, colour: Colour) -> None:
        part = self.pixels[rows, columns]
        part += np.asarray(cover)[..., None] * (np.array(colour, np.float32) - part)

    def save(self, path: Path) -> None:
        """Write it as a PNG."""
        with writing(path):
            path.write_bytes(encode(self.pixels.round().clip(0, 255).astype(np.uint8)))


def text_width(words: str, scale: int = 2) -> int:
    """How many pixels words take.

    >>> text_width("loss", scale=2)
    46
    """
    return (len(words) * (GLYPH_WIDTH + 1) - 1) * scale


def encode(pixels: Array) -> bytes:
    """The PNG file of red, green and blue bytes (height, width, 3)."""
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB, not interlaced
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    data = zlib.compress(rows.tobytes(), 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Length, kind, data, checksum."""
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def _dots(letter: str) -> Array:
    rows = np.frombuffer(bytes.fromhex(_FONT[letter]), np.uint8)
    return np.unpackbits(rows[:, None], axis=1)[:, 3:].astype(np.float32)


def _reach(start: float, end: float, radius: float, size: int) -> tuple[int, int]:
    """The pixels that a line from start to end can touch, along one axis."""
    low, high = min(start, end) - radius - 1, max(start, end) + radius + 2
    return min(max(0, int(low)), size), max(0, min(size, int(high)))
