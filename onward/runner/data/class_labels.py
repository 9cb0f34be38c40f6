"""Categories as numbers: the classes of a label, and columns of 0 and 1 for each category."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.message_text import suggest_names
from onward.runner.data.dataset import Array, Dataset, read_chunks

_MOST = 10_000  # categories; more than that are numbers or free text


@dataclass(frozen=True)
class ClassLabels:
    """A label's classes in sorted order; each becomes its place: text or any numbers -> 0..n-1.

    >>> labels = ClassLabels("kind", ("cat", "dog"))
    >>> labels.apply(np.array(["dog", "cat"], object)).tolist()
    [1, 0]
    """

    column: str
    classes: tuple[str | int | float | bool, ...]

    @classmethod
    def fit(cls, dataset: Dataset, column: str, positions: Array | None = None) -> ClassLabels:
        """The classes that occur in the training data."""
        return cls(column, _categories(dataset, column, positions))

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """The number of each label's class; `positions` name the rows in errors."""
        return _codes(array, self.classes, self.column, positions)

    def decode(self, numbers: Array) -> list[Any]:
        """The classes of numbers."""
        return [self.classes[int(number)] for number in numbers]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "ClassLabels", "column": self.column, "classes": list(self.classes)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ClassLabels:
        return cls(str(record["column"]), tuple(record["classes"]))


@dataclass(frozen=True)
class OneHotLabels:
    """A label of zeros and a single 1, one number for each class, as the place of the 1.

    >>> OneHotLabels("kind").apply(np.array([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [1, 0]
    """

    column: str

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """The number of each label's class; `positions` name the rows in errors."""
        wrong = ~are_one_hot(array)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"row {_row(row, positions)}, column {self.column!r}: {array[row]} is not zeros "
                "and a single 1, as the training data has\ncorrect the data"
            )
        places: Array = array.argmax(1).astype(np.int64)
        return places

    def to_json(self) -> dict[str, Any]:
        return {"kind": "OneHotLabels", "column": self.column}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> OneHotLabels:
        return cls(str(record["column"]))


@dataclass(frozen=True)
class OneHotColumn:
    """A column of categories as columns of 0 and 1, one for each: (rows, categories) float32.

    >>> OneHotColumn("kind", ("cat", "dog")).apply(np.array(["dog"], object)).tolist()
    [[0.0, 1.0]]
    """

    column: str
    categories: tuple[str | int | float | bool, ...]

    @classmethod
    def fit(cls, dataset: Dataset, column: str, positions: Array | None = None) -> OneHotColumn:
        """The categories that occur in the training data."""
        return cls(column, _categories(dataset, column, positions))

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """A row of 0 and one 1 for each category; `positions` name the rows in errors."""
        codes = _codes(array, self.categories, self.column, positions)
        return np.eye(len(self.categories), dtype=np.float32)[codes]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "OneHotColumn", "column": self.column, "categories": list(self.categories)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> OneHotColumn:
        return cls(str(record["column"]), tuple(record["categories"]))


def are_one_hot(array: Array) -> Array:
    """Whether each row of (rows, classes) has zeros and a single 1."""
    found: Array = ((array == 0) | (array == 1)).all(1) & (array.sum(1) == 1)
    return found


def check_label_range(
    labels: Array, classes: int, column: str, positions: Array | None = None
) -> None:
    """Refuse labels that are not 0 to classes - 1; the error names the row.

    >>> check_label_range(np.array([0, 2]), 3, "label")
    """
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"column {column!r} has labels of the type {labels.dtype}, not whole numbers\n"
            "encode them: ClassLabels.fit(dataset, column)"
        )
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        at = int(np.argmax(wrong.reshape(len(labels), -1).any(1)))
        value = labels[wrong].flat[0]
        advice = f"give the model {int(labels.max()) + 1} outputs"
        if value < 0:
            advice = f"if it stands for no class, say so: ignore_index={value}"
        raise DataError(
            f"label {value} in row {_row(at, positions)}, column {column!r}, is out of range: the "
            f"model has {classes} classes, 0 to {classes - 1}\n"
            f"correct the data, or {advice}"
        )


def _categories(dataset: Dataset, column: str, positions: Array | None) -> tuple[Any, ...]:
    found: set[Any] = set()
    for rows, values in read_chunks(dataset, column, positions):
        if values.ndim != 1 or (len(values) and isinstance(values[0], np.ndarray)):
            raise DataError(f"column {column!r} has arrays, not categories")
        if values.dtype.kind == "f" and np.isnan(values).any():
            row = rows[int(np.argmax(np.isnan(values)))]
            raise DataError(
                f"row {row}, column {column!r} has no value, which cannot be a category\n"
                "remove the row, or fill the column first: FillMissing"
            )
        found.update(values.tolist())
        if len(found) > _MOST:
            raise DataError(
                f"column {column!r} has more than {_MOST:,} different values, too many for "
                "categories\nis it a number, or a text to be split into tokens?"
            )
    if not found:
        raise DataError(f"column {column!r} has no rows to learn categories from")
    return tuple(sorted(found))


def _codes(array: Array, known: tuple[Any, ...], column: str, positions: Array | None) -> Array:
    places = {value: place for place, value in enumerate(known)}
    codes = np.empty(len(array), np.int64)
    for row, value in enumerate(array.reshape(len(array)).tolist()):  # (rows,) or (rows, 1)
        code = places.get(value)
        if code is None:
            hint = suggest_names(str(value), map(str, known), "the training data had")
            raise DataError(
                f"row {_row(row, positions)}, column {column!r}: {value!r:.80} is not one of the "
                f"{len(known)} categories of the training data\n{hint}"
            )
        codes[row] = code
    return codes


def _row(place: int, positions: Array | None) -> int:
    return place if positions is None else int(positions[place])
