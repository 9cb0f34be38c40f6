"""convert_picture: an image of Pillow in the mode that a model takes, whatever its bits."""

from __future__ import annotations

from typing import Any

import numpy as np

_SIXTEEN_TO_EIGHT = 257  # 65535 becomes 255


def convert_picture(file: Any, mode: str) -> Any:
    """An open image, upright, as "L", "RGB" or "RGBA"; ValueError for pixels of 32 bits.

    Pillow cuts 16 bits off at 255. Its older releases give those of a PNG file as 32.
    """
    from PIL import Image, ImageOps

    picture = ImageOps.exif_transpose(file)
    if picture.mode == "F" or (picture.mode == "I" and file.format != "PNG"):
        raise ValueError(
            "its pixels have 32 bits, whose range is not known: convert it to 8 or 16 bits"
        )
    if picture.mode.startswith("I"):
        wide = np.asarray(picture).astype(np.float64)
        picture = Image.fromarray((wide / _SIXTEEN_TO_EIGHT).round().astype(np.uint8))
    return picture.convert(mode)
