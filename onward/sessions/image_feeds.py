"""Images as feeds: decoded, resized to the input's size, in the layout of its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import FeedError, OptionError, PackageMissing
from onward.graph.paths import check_exists
from onward.sessions.picture_modes import convert_picture

Array = np.ndarray[Any, Any]
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's names for so many channels


@dataclass(frozen=True)
class Preparation:
    """How pixels are scaled: y = (x / scale - mean) / std, by channel. Bytes stay bytes."""

    scale: float = 255.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class ImageLayout:
    """The axes of an image input and their sizes; None: the image's own size."""

    order: str  # "NCHW", "NHWC", "CHW", "HWC" or "HW"
    channels: int
    height: int | None
    width: int | None


def guess_layout(arg: Any, sizes: Mapping[str, int]) -> ImageLayout:
    """Guess the layout from an input's shape: the axis of 1, 3 or 4 is the channels."""
    fixed = [_size(arg, place, sizes) for place in range(len(arg.shape))]
    if len(fixed) == 2:
        return ImageLayout("HW", 1, fixed[0], fixed[1])
    if len(fixed) not in (3, 4):
        raise FeedError(f"input {arg.name!r} of {len(fixed)} dimensions does not take an image")
    batch = "N" if len(fixed) == 4 else ""
    first, second, last = fixed[-3:]
    if _channel_rank(last) > _channel_rank(first):
        return ImageLayout(f"{batch}HWC", int(last or 0), first, second)
    if first is not None and first not in _MODES:
        raise FeedError(
            f"input {arg.name!r} has {first} channels: neither 1, 3 nor 4, as images do"
        )
    return ImageLayout(f"{batch}CHW", first or 3, second, last)


def _channel_rank(size: int | None) -> int:
    """How likely an axis is the channels: 3, then 1, then 4, then one of unknown size."""
    return {3: 3, 1: 2, 4: 1}.get(size or 0, 0)


def _size(arg: Any, place: int, sizes: Mapping[str, int]) -> int | None:
    size = arg.shape[place]
    if isinstance(size, int):
        return size
    return sizes.get(f"{arg.name}:{place}", sizes.get(size) if size else None)


def read_images(
    paths: Sequence[Path],
    arg: Any,
    dtype: np.dtype[Any],
    sizes: Mapping[str, int],
    preparation: Preparation,
) -> tuple[Array, str]:
    """The images of one input as one tensor, and a note on how they were prepared."""
    layout = guess_layout(arg, sizes)
    pictures = [_read(path, layout) for path in paths]
    shapes = {picture.shape for picture in pictures}
    if len(shapes) > 1:
        raise FeedError(
            f"input {arg.name!r}: images of different sizes cannot be one batch\n"
            "give the size with --size"
        )
    if "N" not in layout.order and len(pictures) > 1:
        raise FeedError(f"input {arg.name!r} takes one image, but {len(pictures)} were given")
    pixels = np.stack(pictures)  # (batch, height, width, channels), bytes
    done = "bytes"
    if dtype != np.uint8:
        pixels, done = _scaled(pixels, preparation)
    if layout.order.endswith("CHW"):
        pixels = pixels.transpose(0, 3, 1, 2)
    if layout.order == "HW":
        pixels = pixels[..., 0]
    pixels = np.ascontiguousarray(pixels if "N" in layout.order else pixels[0], dtype=dtype)
    count = f"{len(paths)} images" if len(paths) > 1 else str(paths[0])
    height, width, channels = pictures[0].shape
    note = (
        f"{arg.name}: {count} as {layout.order}, {height} x {width}, {_CHANNELS[channels]}, {done}"
    )
    return pixels, note


_CHANNELS = {1: "grey", 3: "RGB", 4: "RGBA"}


def _read(path: Path, layout: ImageLayout) -> Array:
    """An image of the layout's size as bytes: (height, width, channels)."""
    try:
        from PIL import Image
    except ImportError:
        raise PackageMissing(
            f"{path} is an image, and Pillow, which reads images, is not installed\n"
            "install it with: pip install onward[images]"
        ) from None
    check_exists(path, "image")
    try:
        with Image.open(path) as file:
            picture = convert_picture(file, _MODES[layout.channels])
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise FeedError(f"{path} is not an image that Pillow can read: {error}") from error
    size = (layout.width or picture.width, layout.height or picture.height)
    if size != picture.size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, np.uint8)
    return pixels.reshape(*pixels.shape[:2], layout.channels)


def _scaled(pixels: Array, preparation: Preparation) -> tuple[Array, str]:
    if preparation.scale == 0 or 0 in preparation.std:
        raise OptionError("--scale and --std divide: they cannot be 0")
    values: Array = pixels.astype(np.float32)
    done: list[str] = []
    if preparation.scale != 1:
        values, done = values / np.float32(preparation.scale), [f"/ {preparation.scale:g}"]
    if preparation.mean:
        values = values - _by_channel("--mean", preparation.mean, values)
        done.append(f"- {_list(preparation.mean)}")
    if preparation.std:
        values = values / _by_channel("--std", preparation.std, values)
        done.append(f"/ {_list(preparation.std)}")
    return values, " ".join(done) or "0 to 255"


def _by_channel(option: str, numbers: Sequence[float], pixels: Array) -> Array:
    if len(numbers) not in (1, pixels.shape[-1]):
        raise OptionError(
            f"{option} takes 1 number or one for each channel ({pixels.shape[-1]}), "
            f"but was given {len(numbers)}"
        )
    return np.asarray(numbers, np.float32)


def _list(numbers: Sequence[float]) -> str:
    return f"({', '.join(f'{number:g}' for number in numbers)})"
