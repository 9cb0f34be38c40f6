"""Preprocessing: the columns of data as feeds of a model, stored with it as JSON.

What training learnt about columns (classes, means, vocabularies, sizes of images) is repeated by
`onward run` and by serving. It is kept in the model's metadata, under one key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onward.runner.data.encode import Encoder

METADATA_KEY = "onward.preprocessing"
_VERSION = 1


@dataclass(frozen=True)
class FeedSource:
    """How one feed is made: of which columns, each through which encoders.

    Several columns are joined along the last axis, in their order. `dtype` and `shape` are the
    feed's; None in the shape is any size, and the first is the number of rows.
    """

    feed: str
    columns: tuple[str, ...]
    encoders: Mapping[str, tuple[Encoder, ...]]  # by column
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True)
class Preprocessing:
    """The feeds of a model from columns of data."""

    inputs: tuple[FeedSource, ...]
    target: FeedSource | None = None  # for training and evaluation
    output: str | None = None  # the output that answers; its classes are those of the target
    classes: tuple[Any, ...] = field(default=())
