"""Mistakes for a page: inputs that are images as PNG data URIs, others as their first numbers."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.runner.figures.pixels import encode_png, to_pixels

if TYPE_CHECKING:
    from onward.runner.events import Mistake

_MOST = 60  # mistakes on a page
_NUMBERS = 12  # of an input that is not an image


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
