"""Arrays as PNG pictures: which arrays are images, and what Pillow reads back."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from onward.runner.figures.pixels import encode_png, to_pixels


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pillow_reads_the_same_pixels(channels: int) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    read = np.asarray(Image.open(io.BytesIO(encode_png(pixels))))
    np.testing.assert_array_equal(read.reshape(pixels.shape), pixels)


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (np.zeros((1, 1, 28, 28), np.float32), (28, 28, 1)),
        (np.zeros((3, 8, 10), np.float32), (8, 10, 3)),
        (np.zeros((8, 10, 3), np.uint8), (8, 10, 3)),
        (np.zeros((3, 600, 300), np.uint8), (200, 100, 3)),
        (np.zeros((28, 28), np.float64), (28, 28, 1)),
        (np.zeros((128,), np.float32), None),
        (np.zeros((1, 128), np.int64), None),
        (np.zeros((5, 16, 16), np.float32), None),
        (np.array(["text"]), None),
    ],
)
def test_images_are_recognised_by_their_shape(
    array: np.ndarray[Any, Any], shape: tuple[int, ...] | None
) -> None:
    pixels = to_pixels(array)
    assert (None if pixels is None else pixels.shape) == shape


def test_standardized_pixels_are_stretched() -> None:
    pixels = to_pixels(np.linspace(-1, 1, 16).reshape(4, 4))
    assert pixels is not None and (pixels.min(), pixels.max()) == (0, 255)
