"""Cases of rules/image.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal


def _col2im(note: str, x: Any, image: list[int], block: list[int], **rest: Any) -> Case:
    options = {n: rest.pop(n) for n in ("ort",) if n in rest}
    image_shape, block_shape = np.array(image), np.array(block)
    return Case(
        "Col2Im",
        lambda op, x: op.Col2Im(x, image_shape, block_shape, **rest),
        {"x": x},
        note,
        **options,
    )


CASES = [
    _col2im("", normal(2, 3 * 4, 12), [4, 5], [2, 2]),
    _col2im("strides", normal(2, 3 * 4, 4), [5, 5], [2, 2], strides=[2, 3]),
    _col2im("pads", normal(1, 2 * 6, 5 * 5), [5, 5], [2, 3], pads=[1, 0, 0, 2]),
    _col2im("dilations", normal(1, 2 * 4, 3 * 2), [5, 5], [2, 2], dilations=[2, 3]),
    _col2im("three axes", normal(1, 2 * 8, 2 * 1 * 2), [3, 2, 3], [2, 2, 2]),
    Case(
        "Col2Im",
        lambda op, x, image, block: op.Col2Im(x, image, block),
        {"x": normal(2, 3 * 4, 12), "image": np.array([4, 5]), "block": np.array([2, 2])},
        "shapes that are fed",
        fixed=("image", "block"),
    ),
]
