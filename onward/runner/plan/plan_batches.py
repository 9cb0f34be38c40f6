"""The batches of a plan: of training, of evaluation, and a few for calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from onward.errors import DataError, OptionError
from onward.runner.config import TrainConfig
from onward.runner.data.batches import Batches, Feeds
from onward.runner.data.dataset import TEXT, Column, Dataset
from onward.runner.data.text_tokenizer import MASK, TOKENS, TYPES
from onward.runner.plan.feed_transform import (
    FeedTransform,
    SoftLabels,
    find_images,
    make_augmentation,
)
from onward.runner.plan.model_shapes import TensorPort
from onward.runner.plan.preprocessing import Preprocessing
from onward.runner.plan.row_split import RowSplit, balanced_order
from onward.runner.plan.row_weights import RowWeights
from onward.runner.plan.target_facts import TargetFacts
from onward.runner.plan.training_data import TrainingData

_UNKNOWN = Column(TEXT)  # such as tokens that a vocabulary makes of a text
_CALIBRATION = 8  # batches that calibrate a model, such as the ranges of quantization


def make_batches(
    config: TrainConfig,
    opened: TrainingData,
    rows: RowSplit,
    facts: TargetFacts | None,
    preprocessing: Preprocessing,
    port: TensorPort,
    size: int,
    weights: RowWeights | None = None,
    drops_last: bool = False,
) -> tuple[Batches, Batches | None]:
    """The batches of training, and those of evaluation: neither shuffled nor augmented."""
    images = find_images(preprocessing.inputs, opened.training)
    augmentation = make_augmentation(config, images)
    soft = None
    if config.mixup and images is not None and preprocessing.target is not None:
        classes = port.shape[1]
        if classes is None or len(port.shape) != 2:
            raise OptionError(
                "mixup needs one class for each image, and a model with a known number of outputs\n"
                "leave mixup out"
            )
        feeds = images[0].feed, preprocessing.target.feed
        soft = SoftLabels(*feeds, classes, config.mixup, config.seed)
    columns = preprocessing.needed_columns()
    is_fixed = any(source.shape and source.shape[0] for source in preprocessing.inputs)
    layout = "CHW" if images is None else images[1]
    training = Batches(
        opened.training,
        size,
        seed=config.seed,
        drop_last=is_fixed or drops_last,
        positions=rows.training,
        order=balanced_order(config, opened.training, rows.training, facts),
        columns=columns if weights is None else [*columns, weights.column],
        transform=FeedTransform(preprocessing, augmentation, layout, soft, weights=weights),
        threads=config.data_threads,
        row_wise=soft is None and _is_row_wise(preprocessing, opened.training),
        repeats=augmentation is None,
    )
    if rows.validation is None or rows.held_out is None:
        return training, None
    if is_fixed and len(rows.validation) < size:
        raise DataError(
            f"the model was exported with a batch of {size} rows, which the {len(rows.validation)} "
            "held-out rows do not fill\n"
            "hold out more (--validation-split 0.3) or none (0), or export it with a dynamic batch"
        )
    plain = None if soft is None else replace(soft, alpha=0.0)
    evaluated = Batches(
        rows.held_out,
        size,
        shuffle=False,
        drop_last=is_fixed,
        positions=np.asarray(rows.validation),
        columns=columns,
        transform=FeedTransform(
            preprocessing, soft_labels=plain, weights=weights, weighs_alike=True
        ),
        threads=config.data_threads,
        row_wise=_is_row_wise(preprocessing, rows.held_out),
        repeats=True,
    )
    return training, evaluated


def _is_row_wise(preprocessing: Preprocessing, data: Dataset) -> bool:
    """Whether a row's feeds depend only on it: rows are not padded to the longest of a batch.

    Rows that are padded are made of the whole batch in every process (`Batches.part_of`): all
    processes pad to the same length, and train what one process would.
    """
    vocabulary = preprocessing.vocabulary
    made = (TOKENS, MASK, TYPES) if vocabulary is not None and vocabulary.columns else ()
    known = {name: column for name, column in data.columns.items() if name not in made}
    target = () if preprocessing.target is None else (preprocessing.target,)
    return not any(
        None in source.shape[1:] and (column.dtype == TEXT or None in column.shape)
        for source in (*preprocessing.inputs, *target)
        for column in (known.get(name, _UNKNOWN) for name in source.columns)
    )


def first_feeds(batches: Batches) -> Iterator[Feeds]:
    """The feeds of a few batches."""
    epoch = batches.epoch(0)
    try:
        for batch in islice(epoch, _CALIBRATION):
            yield batch.feeds
    finally:
        epoch.close()
