"""FeedTransform: a batch of raw columns as feeds, with augmentation before and mixup after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onward.errors import OptionError
from onward.runner.config import TrainConfig
from onward.runner.data.augment import Augmentation, mixup
from onward.runner.data.dataset import IMAGE, Array, Dataset
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.image_layout import image_sizes
from onward.runner.plan.model_shapes import TensorPort
from onward.runner.plan.preprocessing import Preprocessing
from onward.runner.plan.row_weights import RowWeights

_CHANGES = ("flip", "crop", "brightness", "contrast", "saturation")


@dataclass(frozen=True)
class SoftLabels:
    """Labels as weights of classes, because mixup shares a row among several."""

    image: str  # the feed with images
    labels: str  # the feed with labels
    classes: int
    alpha: float  # 0: rows are not mixed
    seed: int = 0

    def apply(self, feeds: dict[str, Array], epoch: int, positions: Array) -> dict[str, Array]:
        labels = feeds[self.labels]
        if not self.alpha:
            weights = np.eye(self.classes, dtype=np.float32)[labels]
            return {**feeds, self.labels: weights}
        images = feeds[self.image]
        mixed, weights = mixup(
            images, labels, self.classes, self.alpha, self.seed, epoch, positions
        )
        return {**feeds, self.image: mixed.astype(images.dtype), self.labels: weights}


@dataclass(frozen=True)
class FeedTransform:
    """The transform of Batches: raw columns to feeds."""

    preprocessing: Preprocessing
    augmentation: Augmentation | None = None
    layout: str = "CHW"  # of the images that are augmented: "CHW", "HWC" or "HW"
    soft_labels: SoftLabels | None = None
    target: bool = True
    weights: RowWeights | None = None
    weighs_alike: bool = False  # rows to evaluate on

    def __call__(self, columns: dict[str, Array], epoch: int, positions: Array) -> dict[str, Array]:
        if self.augmentation is not None:
            columns = self._augment(self.augmentation, columns, epoch, positions)
        feeds = self.preprocessing.feeds(columns, positions, self.target)
        if self.soft_labels is not None:
            feeds = self.soft_labels.apply(feeds, epoch, positions)
        if self.weights is not None:
            alike = np.ones(len(positions), np.float32)
            feeds[self.weights.feed] = alike if self.weighs_alike else self.weights.of(columns)
        return feeds

    def _augment(
        self, change: Augmentation, columns: dict[str, Array], epoch: int, positions: Array
    ) -> dict[str, Array]:
        """Augment images as (rows, channels, height, width), and return to their own layout."""
        images = columns[change.column]
        if self.layout == "HW":
            images = images[:, None]
        if self.layout == "HWC":
            images = images.transpose(0, 3, 1, 2)
        changed = change({change.column: images}, epoch, positions)[change.column]
        if self.layout == "HWC":
            changed = changed.transpose(0, 2, 3, 1)
        return {**columns, change.column: changed[:, 0] if self.layout == "HW" else changed}


def find_images(inputs: tuple[FeedSource, ...], data: Dataset) -> tuple[FeedSource, str] | None:
    """The input that is made of one column of images, and the layout of that column."""
    for source in inputs:
        column = data.columns.get(source.columns[0])
        if column is None or len(source.columns) != 1 or len(source.shape) != 4:
            continue
        if column.dtype == IMAGE:
            return source, "CHW"
        if len(column.shape) == 2:
            return source, "HW"
        if len(column.shape) == 3:
            last = image_sizes(TensorPort(source.columns[0], "uint8", (None, *column.shape)))[3]
            return source, "HWC" if last else "CHW"
    return None


def make_augmentation(
    config: TrainConfig, images: tuple[FeedSource, str] | None
) -> Augmentation | None:
    """The changes to images that a config asks for; None if there are none."""
    asked = [name for name in (*_CHANGES, "mixup") if getattr(config, name)]
    if asked and images is None:
        raise OptionError(
            f"{asked[0]} is for images, but no input of the model is made of a column of images\n"
            "leave it out"
        )
    if images is None or asked in ([], ["mixup"]):
        return None
    return Augmentation(
        column=images[0].columns[0],
        flip=config.flip,
        crop=config.crop,
        brightness=config.brightness,
        contrast=config.contrast,
        saturation=config.saturation,
        seed=config.seed,
    )
