"""Images as inputs: files' bytes are decoded, resized and scaled to what the model takes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from onward.errors import FeedError, OptionError, PackageMissing
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES
from onward.sessions.image_feeds import ImageLayout, guess_layout

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SETTINGS = "preprocessor_config.json"  # of Hugging Face, next to the model
_DEFAULT_SIZE = 224


@dataclass(frozen=True)
class PixelScaling:
    """y = (x * factor - mean) / std by channel."""

    factor: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    height: int | None = None
    width: int | None = None


def image_preprocessing(
    inputs: Sequence[TensorSpec], folder: Path
) -> tuple[list[TensorSpec], Callable[[Mapping[str, Array]], dict[str, Array]]]:
    """The specs and the function of a model whose only input is images."""
    pictures = [spec for spec in inputs if len(spec.shape) == 4]
    if len(pictures) != 1 or len(inputs) != 1:
        raise OptionError("preprocess: image is for models with one input of 4 axes")
    [spec] = pictures
    sizes: list[int | str] = [size if size >= 0 else "" for size in spec.shape]
    layout = guess_layout(SimpleNamespace(name=spec.name, shape=sizes), {})
    scaling = read_scaling(folder / _SETTINGS)
    dtype = DATATYPES[spec.datatype]

    def prepare(feeds: Mapping[str, Array]) -> dict[str, Array]:
        files = feeds["image"].reshape(-1).tolist()
        pixels = np.stack([decode_image(file, layout, scaling) for file in files])
        return {spec.name: scale_pixels(pixels, layout, scaling, dtype)}

    return [TensorSpec("image", "BYTES", (-1,), ("",), is_binary=True)], prepare


def read_scaling(path: Path) -> PixelScaling:
    """How pixels are scaled: as preprocessor_config.json says, or to 0..1."""
    if not path.is_file():
        return PixelScaling()
    try:
        record = json.loads(path.read_text("utf-8"))
        size = record.get("crop_size") if record.get("do_center_crop") else record.get("size")
        height, width = _size(size)
        normal = record.get("do_normalize", True)
        return PixelScaling(
            float(record.get("rescale_factor", 1 / 255)) if record.get("do_rescale", True) else 1.0,
            tuple(map(float, record.get("image_mean", ()))) if normal else (),
            tuple(map(float, record.get("image_std", ()))) if normal else (),
            height,
            width,
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error


def decode_image(data: Any, layout: ImageLayout, scaling: PixelScaling) -> Array:
    """A file's bytes as pixels of the model's size: uint8 (height, width, channels)."""
    height = layout.height or scaling.height or _DEFAULT_SIZE
    width = layout.width or scaling.width or _DEFAULT_SIZE
    if isinstance(data, str):  # warming up: no client sends text here
        return np.zeros((height, width, layout.channels), np.uint8)
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise PackageMissing(
            "Pillow, which reads images, is not installed\n"
            "install it with: pip install onward[images]"
        ) from None
    try:
        with Image.open(io.BytesIO(data)) as file:
            picture = ImageOps.exif_transpose(file).convert(_MODES[layout.channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = "its bytes are those of no image" if "cannot identify" in str(error) else error
        raise FeedError(f"input 'image' is not an image that can be read: {why}") from error
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.uint8).reshape(height, width, layout.channels)


def scale_pixels(
    pixels: Array, layout: ImageLayout, scaling: PixelScaling, dtype: np.dtype[Any]
) -> Array:
    """Pixels (batch, height, width, channels) in the model's type and order of axes."""
    if dtype != np.uint8:
        values: Array = pixels.astype(np.float32) * np.float32(scaling.factor)
        if scaling.mean:
            values = values - np.asarray(scaling.mean, np.float32)
        if scaling.std:
            values = values / np.asarray(scaling.std, np.float32)
        pixels = values
    if layout.order.endswith("CHW"):
        pixels = pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels, dtype=dtype)


def _size(size: Any) -> tuple[int | None, int | None]:
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        height, width = size.get("height", edge), size.get("width", edge)
        return (int(height) if height else None, int(width) if width else None)
    return (int(size), int(size)) if size else (None, None)
