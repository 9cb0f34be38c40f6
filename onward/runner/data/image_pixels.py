"""ImagePixels: images of any size as one batch of normalised floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import DataError, PackageMissing
from onward.runner.data.dataset import Array, Dataset, read_chunks
from onward.settings import setting_error

_FEW = 64  # images in memory at once while the mean is computed


@dataclass(frozen=True)
class ImagePixels:
    """y = (x / 255 - mean) / std by channel, float32, after resizing to (height, width).

    >>> pixels = ImagePixels("image", None, (0.5,), (0.5,))
    >>> pixels.apply(np.array([[[[0, 255]]]], np.uint8)).tolist()
    [[[[-1.0, 1.0]]]]
    """

    column: str
    size: tuple[int, int] | None  # (height, width); None: the images have one size
    mean: tuple[float, ...] = (0.0,)  # one number, or one for each channel
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not all(self.std):
            raise setting_error("ImagePixels.std", "above 0", self.std)

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        column: str,
        positions: Array | None = None,
        *,
        size: tuple[int, int] | None = None,
    ) -> ImagePixels:
        """The mean and standard deviation of each channel over the training data."""
        count, total, squares = 0, np.zeros(1), np.zeros(1)
        plain = cls(column, size)
        for rows, images in read_chunks(dataset, column, positions, _FEW):
            pixels = plain.apply(images, rows).astype(np.float64)
            count += pixels.size // pixels.shape[1]
            total = total + pixels.sum((0, 2, 3))
            squares = squares + (pixels**2).sum((0, 2, 3))
        mean = total / max(count, 1)
        std = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0.0))
        std = np.where(std > 1e-6, std, 1.0)
        return cls(column, size, tuple(mean.tolist()), tuple(std.tolist()))

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """A batch of images as floats; `positions` name the rows in errors."""
        pixels = self._to_one_size(array, positions).astype(np.float32)  # a copy, changed in place
        mean, std = (np.array(each, np.float32)[:, None, None] for each in (self.mean, self.std))
        if len(mean) not in (1, pixels.shape[1]) or len(std) not in (1, pixels.shape[1]):
            raise DataError(
                f"column {self.column!r} has images of {pixels.shape[1]} channels, but the mean "
                f"has {len(mean)} numbers"
            )
        pixels /= np.float32(255)
        pixels -= mean
        pixels /= std
        return pixels

    def _to_one_size(self, array: Array, positions: Array | None) -> Array:
        """The images as one array of bytes."""
        if array.ndim == 4 and array.dtype == np.uint8 and self.size in (None, array.shape[2:]):
            return array
        images = [np.asarray(image) for image in array]
        for row, image in enumerate(images):
            place = row if positions is None else int(positions[row])
            if image.ndim != 3 or image.dtype != np.uint8:
                raise DataError(
                    f"row {place}, column {self.column!r}: {image.dtype} of shape {image.shape} "
                    "is not an image: uint8 (channels, height, width)"
                )
            wanted = images[0].shape if self.size is None else (len(images[0]), *self.size)
            if self.size is None and image.shape != wanted:
                raise DataError(
                    f"row {place}, column {self.column!r}: the image is {_sizes(image.shape)}, "
                    f"another of its batch {_sizes(wanted)}\ngive ImagePixels a size to resize to"
                )
            if image.shape[1:] != wanted[1:]:
                images[row] = _resize(image, wanted[1], wanted[2])
        return np.stack(images)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "ImagePixels",
            "column": self.column,
            "size": None if self.size is None else list(self.size),
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ImagePixels:
        height_width = record["size"]
        size = None if height_width is None else (int(height_width[0]), int(height_width[1]))
        return cls(str(record["column"]), size, tuple(record["mean"]), tuple(record["std"]))


def _resize(image: Array, height: int, width: int) -> Array:
    """An image in another size, bilinear, as `onward run` resizes its feeds."""
    try:
        from PIL import Image
    except ImportError:
        raise PackageMissing(
            "images are resized with Pillow, which is not installed\n"
            "install it with: pip install 'onward[data]'"
        ) from None
    how = Image.Resampling.BILINEAR
    return np.stack([np.asarray(Image.fromarray(c).resize((width, height), how)) for c in image])


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
