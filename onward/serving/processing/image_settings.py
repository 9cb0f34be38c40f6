"""How images become a model's input: what Hugging Face's preprocessor_config.json says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import OptionError

_BILINEAR = 2  # Pillow's numbers of filters, which the file has, too
_CONVNEXT_UNCROPPED = 384  # ConvNeXt's images are cropped below this size only


@dataclass(frozen=True)
class ImageSettings:
    """Resize, crop, then y = (x * factor - mean) / std by channel."""

    factor: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    height: int | None = None  # of the result; None: the file does not say
    width: int | None = None
    is_cropped: bool = False  # its center is cut out, after resizing to one of these:
    shortest_edge: int | None = None  # the shorter side; the other keeps the proportions
    size_before_crop: tuple[int, int] | None = None  # height, width
    keeps_proportions: bool = False  # without a crop: the size differs from image to image
    filter: int = _BILINEAR
    is_bgr: bool = False


def read_image_settings(path: Path) -> ImageSettings:
    """The settings of a preprocessor_config.json; without the file, pixels are scaled to 0..1."""
    if not path.is_file():
        return ImageSettings()
    try:
        record = json.loads(path.read_text("utf-8"))
        # MobileViT, whose channels are flipped, is the one that does not normalise by default
        normal = record.get("do_normalize", "do_flip_channel_order" not in record)
        return ImageSettings(
            float(record.get("rescale_factor", 1 / 255)) if record.get("do_rescale", True) else 1.0,
            tuple(map(float, record.get("image_mean", ()))) if normal else (),
            tuple(map(float, record.get("image_std", ()))) if normal else (),
            filter=int(record.get("resample", _BILINEAR)),
            is_bgr=bool(record.get("do_flip_channel_order", False)),
            **_sizes(record),
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error


def _sizes(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ImageSettings that say how images are resized and cropped."""
    size, is_cropped = record.get("size"), bool(record.get("do_center_crop"))
    edge = _edge(size, is_cropped and "DeiT" not in str(_kind(record)))
    height, width = _square(size)
    if edge and record.get("crop_pct"):  # ConvNeXt
        is_cropped = edge < _CONVNEXT_UNCROPPED
        before = int(edge / float(record["crop_pct"]))
        return {
            "height": edge,
            "width": edge,
            "is_cropped": is_cropped,
            "shortest_edge": before if is_cropped else None,
        }
    if not is_cropped:
        return {"height": height, "width": width, "keeps_proportions": edge is not None}
    crop_height, crop_width = _square(record.get("crop_size", size))
    sizes: dict[str, Any] = {"height": crop_height, "width": crop_width, "is_cropped": True}
    if not record.get("do_resize", True):
        return sizes
    if edge is not None:
        return {**sizes, "shortest_edge": edge}
    return {**sizes, "size_before_crop": (height, width) if height and width else None}


def _kind(record: Mapping[str, Any]) -> Any:
    return record.get("image_processor_type", record.get("feature_extractor_type", ""))


def _edge(size: Any, is_edge: bool) -> int | None:
    """The length of the shorter side, if the size is one; `is_edge`: a bare number is."""
    if isinstance(size, Mapping):
        return int(size["shortest_edge"]) if size.get("shortest_edge") else None
    return int(size) if size and is_edge else None


def _square(size: Any) -> tuple[int | None, int | None]:
    """Height and width; one number is both."""
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        height, width = size.get("height", edge), size.get("width", edge)
        return (int(height) if height else None, int(width) if width else None)
    return (int(size), int(size)) if size else (None, None)
