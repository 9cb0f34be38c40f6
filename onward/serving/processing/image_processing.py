"""Images as inputs: files' bytes are decoded, resized and scaled to what the model takes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from onward.errors import FeedError, OptionError, PackageMissing
from onward.serving.processing.image_settings import ImageSettings, read_image_settings
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES
from onward.sessions.image_feeds import ImageLayout, guess_layout
from onward.sessions.picture_modes import convert_picture

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SETTINGS = "preprocessor_config.json"  # of Hugging Face, next to the model
_DEFAULT_SIZE = 224


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
    settings = read_image_settings(folder / _SETTINGS)
    _check_size(settings, layout, folder / _SETTINGS)
    dtype = DATATYPES[spec.datatype]

    def prepare(feeds: Mapping[str, Array]) -> dict[str, Array]:
        files = feeds["image"].reshape(-1).tolist()
        pixels = decode_images(files, layout, settings)
        return {spec.name: scale_pixels(pixels, layout, settings, dtype)}

    return [TensorSpec("image", "BYTES", (-1,), ("",), is_binary=True)], prepare


def decode_images(files: Sequence[Any], layout: ImageLayout, settings: ImageSettings) -> Array:
    """Files' bytes as pixels of the model's size: uint8 (batch, height, width, channels)."""
    height = layout.height or settings.height or _DEFAULT_SIZE
    width = layout.width or settings.width or _DEFAULT_SIZE
    pixels = np.zeros((len(files), height, width, layout.channels), np.uint8)
    for place, data in enumerate(files):
        if not isinstance(data, str):  # text: warming up; no client sends it here
            picture = _read_picture(data, _MODES[layout.channels])
            fitted = _fit(picture, (width, height), settings)
            pixels[place] = np.asarray(fitted, np.uint8).reshape(pixels.shape[1:])
    return pixels


def _read_picture(data: Any, mode: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise PackageMissing(
            "Pillow, which reads images, is not installed\n"
            "install it with: pip install onward[images]"
        ) from None
    try:
        with Image.open(io.BytesIO(data)) as file:
            return convert_picture(file, mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = "its bytes are those of no image" if "cannot identify" in str(error) else error
        raise FeedError(f"input 'image' is not an image that can be read: {why}") from error


def _fit(picture: Any, size: tuple[int, int], settings: ImageSettings) -> Any:
    """A Pillow image, resized and cropped to (width, height)."""
    if not settings.is_cropped:
        return picture if picture.size == size else picture.resize(size, settings.filter)
    if settings.shortest_edge is not None:
        edge, (width, height) = settings.shortest_edge, picture.size
        shape = (edge, edge * height // width) if width < height else (edge * width // height, edge)
        picture = picture.resize(shape, settings.filter)
    elif settings.size_before_crop is not None:
        picture = picture.resize(settings.size_before_crop[::-1], settings.filter)
    left, top = (picture.width - size[0]) // 2, (picture.height - size[1]) // 2
    return picture.crop((left, top, left + size[0], top + size[1]))  # black beyond its borders


def _check_size(settings: ImageSettings, layout: ImageLayout, path: Path) -> None:
    """Refuse settings that cannot give what the model takes."""
    fixed = (layout.height, layout.width)
    if settings.keeps_proportions and None in fixed:
        raise OptionError(
            f"{path} makes images of different sizes: shortest_edge without do_center_crop\n"
            "write a function for preprocess, or give height and width in its size"
        )
    wanted = (settings.height, settings.width)
    if settings.is_cropped and any(a and b and a != b for a, b in zip(fixed, wanted)):
        raise OptionError(
            f"{path} makes images of {wanted[0]} x {wanted[1]}, "
            f"but the model takes {fixed[0]} x {fixed[1]}\n"
            "put the file that belongs to the model next to it"
        )


def scale_pixels(
    pixels: Array, layout: ImageLayout, settings: ImageSettings, dtype: np.dtype[Any]
) -> Array:
    """Pixels (batch, height, width, channels) in the model's type and order of axes."""
    if dtype != np.uint8:
        values: Array = pixels.astype(np.float32) * np.float32(settings.factor)
        if settings.mean:
            values = values - np.asarray(settings.mean, np.float32)
        if settings.std:
            values = values / np.asarray(settings.std, np.float32)
        pixels = values
    if settings.is_bgr:
        pixels = pixels[..., ::-1]
    if layout.order.endswith("CHW"):
        pixels = pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels, dtype=dtype)
