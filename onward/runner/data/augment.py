"""Augmentation of images: random changes that are pure functions of (seed, epoch, position).

Images are batches (rows, channels, height, width) of uint8 or of floats. Bytes are rounded and
stay in 0 to 255; floats are not limited, because they may be normalised already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import Array
from onward.runner.data.row_random import uniforms
from onward.settings import check_fields, integer, nonempty_name, number, true_or_false

_FLIP, _DOWN, _RIGHT, _BRIGHTNESS, _CONTRAST, _SATURATION, _PARTNER, _SHARE = range(100, 108)
_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601, as Pillow and torchvision do


def flip(images: Array, seed: int, epoch: int, positions: Array) -> Array:
    """Every image mirrored left to right with probability 1/2."""
    mirrored = uniforms(seed, epoch, positions, _FLIP) < 0.5
    changed = images.copy()
    changed[mirrored] = images[mirrored][..., ::-1]
    return changed


def crop(images: Array, padding: int, seed: int, epoch: int, positions: Array) -> Array:
    """Every image shifted by up to `padding` pixels: zeros around it, then a crop of its size."""
    height, width = images.shape[2:]
    around = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    padded = np.pad(images, around)
    choices = 2 * padding + 1
    down = (uniforms(seed, epoch, positions, _DOWN) * choices).astype(np.int64)
    right = (uniforms(seed, epoch, positions, _RIGHT) * choices).astype(np.int64)
    moved = np.empty_like(images)
    for row, (i, j) in enumerate(zip(down, right)):
        moved[row] = padded[row, :, i : i + height, j : j + width]
    return moved


def colour(
    images: Array,
    seed: int,
    epoch: int,
    positions: Array,
    *,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
) -> Array:
    """y = x f, y = m + (x - m) f, y = g + (x - g) f with f in [1 - strength, 1 + strength].

    m is the image's mean, g its grey version; saturation changes only images of 3 channels.
    """

    def factors(strength: float, stream: int) -> Array:
        drawn = 1 + strength * (2 * uniforms(seed, epoch, positions, stream) - 1)
        return drawn.astype(np.float32)[:, None, None, None]

    pixels: Array = images.astype(np.float32)  # a copy, changed in place from here on
    if brightness:
        pixels *= factors(brightness, _BRIGHTNESS)
    if contrast:
        _blend(pixels, pixels.mean((1, 2, 3), keepdims=True), factors(contrast, _CONTRAST))
    if saturation and images.shape[1] == 3:
        grey = sum(pixels[:, i : i + 1] * _GREY[i] for i in range(3))
        _blend(pixels, grey, factors(saturation, _SATURATION))
    if images.dtype == np.uint8:
        np.rint(pixels, out=pixels).clip(0, 255, out=pixels)
    return pixels.astype(images.dtype, copy=False)


def _blend(x: Array, m: Any, f: Array) -> None:
    """x = m + (x - m) f, in place."""
    x -= m
    x *= f
    x += m


def mixup(
    images: Array,
    labels: Array,
    classes: int,
    alpha: float,
    seed: int,
    epoch: int,
    positions: Array,
) -> tuple[Array, Array]:
    """s x + (1 - s) x' with another image x' of the batch, s from Beta(alpha, alpha).

    Also returns the labels as weights: (rows, classes) float32, each row's sum 1. Images become
    float32. (Zhang, Cisse, Dauphin, Lopez-Paz 2018.)
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"mixup needs one class for each row, not {labels.dtype} {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        bad = int(np.argmax((labels < 0) | (labels >= classes)))
        raise DataError(
            f"label {labels[bad]} in row {positions[bad]} is out of range: there are {classes} "
            f"classes, 0 to {classes - 1}"
        )
    order = np.argsort(uniforms(seed, epoch, positions, _PARTNER), kind="stable")
    partner = np.empty_like(order)
    partner[order] = np.roll(order, 1)  # one cycle: no image is mixed with itself
    share = _beta(alpha, seed, epoch, positions).astype(np.float32)
    weights = np.zeros((len(labels), classes), np.float32)
    weights[np.arange(len(labels)), labels] = share
    weights[np.arange(len(labels)), labels[partner]] += 1 - share
    some = share[:, None, None, None]
    mixed = images.astype(np.float32) * some + images[partner].astype(np.float32) * (1 - some)
    return mixed, weights


def _beta(alpha: float, seed: int, epoch: int, positions: Array) -> Array:
    """A draw from Beta(alpha, alpha) for each row (Jöhnk 1964: x / (x + y), if x + y <= 1)."""
    drawn = np.full(len(positions), np.nan)
    turn = 0
    while (rows := np.flatnonzero(np.isnan(drawn))).size:
        stream = _SHARE + 2 * turn
        x, y = (
            np.log(uniforms(seed, epoch, positions[rows], stream + k) + 2.0**-54) / alpha
            for k in (0, 1)
        )
        top = np.maximum(x, y)  # in logarithms: a small alpha would underflow
        total = top + np.log(np.exp(x - top) + np.exp(y - top))
        drawn[rows] = np.where(total <= 0, np.exp(x - total), np.nan)
        turn += 1
    return drawn


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Changes to a column of images, as a `transform` of Batches.

    >>> augmentation = Augmentation(column="image", flip=True, crop=2)
    >>> images = np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)
    >>> augmentation({"image": images}, 0, np.array([7]))["image"].shape
    (1, 2, 3, 3)
    """

    column: str = "image"
    flip: bool = False
    crop: int = 0  # pixels
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    mixup: float = 0.0  # alpha; 0: none
    label: str = "label"  # mixup replaces it with weights
    classes: int = 0  # which mixup needs
    seed: int = 0

    def __post_init__(self) -> None:
        strength = number(0.0, 1.0)
        check_fields(
            self, column=nonempty_name, flip=true_or_false, crop=integer(0), brightness=strength,
            contrast=strength, saturation=strength, mixup=number(0.0), label=nonempty_name,
            classes=integer(2 if self.mixup else 0), seed=integer(),
        )  # fmt: skip

    def __call__(
        self, feeds: dict[str, Array], epoch: int, positions: Sequence[int] | Array
    ) -> dict[str, Array]:
        rows = np.asarray(positions)
        images = self._check(feeds[self.column])
        if self.flip:
            images = flip(images, self.seed, epoch, rows)
        if self.crop:
            images = crop(images, self.crop, self.seed, epoch, rows)
        strengths: dict[str, Any] = {
            "brightness": self.brightness,
            "contrast": self.contrast,
            "saturation": self.saturation,
        }
        if any(strengths.values()):
            images = colour(images, self.seed, epoch, rows, **strengths)
        changed = {**feeds, self.column: images}
        if self.mixup:
            changed[self.column], changed[self.label] = mixup(
                images, feeds[self.label], self.classes, self.mixup, self.seed, epoch, rows
            )
        return changed

    def _check(self, images: Array) -> Array:
        if images.ndim != 4 or images.dtype.kind not in "uf":
            raise DataError(
                f"column {self.column!r} cannot be augmented: it is {images.dtype} of shape "
                f"{images.shape}, not (rows, channels, height, width) of bytes or floats\n"
                "give the images one size first: image_size=(height, width)"
            )
        return images
