"""Images of other bits than 8, as models take them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from onward.sessions.picture_modes import convert_picture

Image = pytest.importorskip("PIL.Image", reason="PIL is not installed")


def opened(pixels: Any, suffix: str = "png") -> Any:
    """The image as it is after it was written to a file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, suffix)
    return Image.open(file)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_16_bits_become_8(suffix: str, mode: str) -> None:
    pixels = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    found = np.asarray(convert_picture(opened(pixels, suffix), mode))
    expected = np.arange(256).reshape(16, 16)
    assert (found == (expected if mode == "L" else expected[..., None])).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_32_bits_are_refused(dtype: type) -> None:
    with pytest.raises(ValueError, match="its pixels have 32 bits"):
        convert_picture(opened(np.ones((4, 4), dtype), "tiff"), "L")


def test_8_bits_stay() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert (np.asarray(convert_picture(opened(pixels), "L")) == pixels).all()
