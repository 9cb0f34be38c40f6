"""A font that has the letters of a text; Pillow's own has those of ASCII only."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import Any

_SYSTEM = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf",
    "arial.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "msyh.ttc",
)  # fmt: skip
_NO_LETTER = "\uffff"


def font_for(text: str, size: float) -> tuple[Any, str]:
    """A font, and the text as it can be drawn: without accents where no font has them."""
    own = _open(None, size)
    if text.isascii() or _has(own, text):
        return own, text
    for name in _SYSTEM:
        font = _open(name, size)
        if font is not None and _has(font, text):
            return font, text
    return own, without_accents(text)


def without_accents(text: str) -> str:
    """
    >>> without_accents("röt, façade")
    'rot, facade'
    """
    parts = unicodedata.normalize("NFKD", text)
    return "".join(each for each in parts if not unicodedata.combining(each))


@cache
def _open(name: str | None, size: float) -> Any:
    """Pillow's own font, or one of the system; None if it is not there."""
    from PIL import ImageFont

    if name is None:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


def _has(font: Any, text: str) -> bool:
    box = bytes(font.getmask(_NO_LETTER))
    return all(each.isascii() or bytes(font.getmask(each)) != box for each in set(text))
