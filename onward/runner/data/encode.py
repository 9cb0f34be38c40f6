"""Encoders: what is learnt from the training data and must be repeated at inference.

Each is a small frozen value with `fit(dataset, column, positions)`, `apply(array, positions)`,
`to_json()` and `from_json(record)`. A list of them is stored with a model as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from onward.errors import DataError
from onward.message_text import suggest_names
from onward.runner.data.characters import CharacterVocabulary
from onward.runner.data.class_labels import ClassLabels, OneHotColumn, OneHotLabels
from onward.runner.data.dataset import Array
from onward.runner.data.image_pixels import ImagePixels
from onward.runner.data.number_scaling import FillMissing, Standardize


class Encoder(Protocol):
    """A change to one column's batches that was learnt from the training data."""

    def apply(self, array: Array, positions: Array | None = None) -> Array: ...

    def to_json(self) -> dict[str, Any]: ...


ENCODERS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        CharacterVocabulary,
        ClassLabels,
        FillMissing,
        ImagePixels,
        OneHotColumn,
        OneHotLabels,
        Standardize,
    )
}


def encoder_from_json(record: Mapping[str, Any]) -> Encoder:
    """The encoder that `to_json` described.

    >>> encoder_from_json({"kind": "Standardize", "column": "x", "mean": [0.0], "std": [2.0]})
    Standardize(column='x', mean=(0.0,), std=(2.0,))
    """
    kind = str(record.get("kind")) if isinstance(record, Mapping) else ""
    if kind not in ENCODERS:
        raise DataError(f"{kind!r} is not a kind of encoder\n{suggest_names(kind, ENCODERS)}")
    try:
        encoder: Encoder = ENCODERS[kind].from_json(record)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the record of a {kind} is damaged: {error!r}") from error
    return encoder


def encode_column(
    encoders: Iterable[Encoder], array: Array, positions: Array | None = None
) -> Array:
    """A column's batch after several encoders, such as FillMissing and then Standardize."""
    for encoder in encoders:
        array = encoder.apply(array, positions)
    return array
