"""Numbers as models want them: standardised, and without missing values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.dataset import Array, Dataset, read_chunks
from onward.runner.data.number_range import cast_numbers


@dataclass(frozen=True)
class Standardize:
    """y = (x - mean) / std as float32, with one mean and std for each feature of a row.

    >>> Standardize("x", (2.0,), (0.5,)).apply(np.array([2.0, 3.0])).tolist()
    [0.0, 2.0]
    """

    column: str
    mean: tuple[float, ...]  # one number, or one for each element of the last dimension
    std: tuple[float, ...]

    @classmethod
    def fit(cls, dataset: Dataset, column: str, positions: Array | None = None) -> Standardize:
        """Mean and standard deviation of the training data, NaN left out; constants get std 1.

        Chunks are merged by Chan's formula, which loses no digits where the mean is large.
        """
        count, mean, squares = np.zeros(1), np.zeros(1), np.zeros(1)
        for rows, values in read_chunks(dataset, column, positions):
            numbers = _numbers(values, column, rows)
            numbers = numbers.reshape(-1, numbers.shape[-1] if numbers.ndim > 1 else 1)
            known = ~np.isnan(numbers)
            n = known.sum(0)
            m = np.where(known, numbers, 0).sum(0) / np.maximum(n, 1)
            s = (np.where(known, numbers - m, 0) ** 2).sum(0)
            total = np.maximum(count + n, 1)
            squares = squares + s + (m - mean) ** 2 * count * n / total
            mean = mean + (m - mean) * n / total
            count = count + n
        std = np.sqrt(squares / np.maximum(count, 1))
        std = np.where(std > 1e-12 * np.maximum(abs(mean), 1e-30), std, 1.0)
        return cls(column, tuple(mean.tolist()), tuple(std.tolist()))

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """The standardised numbers; `positions` name the rows in errors."""
        if array.dtype == np.uint8 and len(self.mean) == 1:  # bytes of images: look each one up
            return self._scale(np.arange(256.0)).astype(np.float32)[array]
        numbers = _numbers(array, self.column, positions)
        width = numbers.shape[-1] if numbers.ndim > 1 else 1
        if len(self.mean) not in (1, width):
            raise DataError(
                f"column {self.column!r} has {width} numbers in a row, but was standardised with "
                f"{len(self.mean)}"
            )
        scaled = self._scale(numbers)
        return cast_numbers(scaled, np.dtype(np.float32), [self.column], positions)

    def _scale(self, numbers: Array) -> Array:
        return np.asarray((numbers - np.array(self.mean)) / np.array(self.std))

    def invert(self, array: Array) -> Array:
        """The numbers before: for predictions of a standardised target."""
        return np.asarray(np.asarray(array) * np.array(self.std) + np.array(self.mean))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "Standardize",
            "column": self.column,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Standardize:
        return cls(str(record["column"]), tuple(record["mean"]), tuple(record["std"]))


@dataclass(frozen=True)
class FillMissing:
    """Replace NaN, or an empty text, with one value: the training data's mean, or most frequent.

    >>> FillMissing("age", 30.0).apply(np.array([1.0, np.nan])).tolist()
    [1.0, 30.0]
    """

    column: str
    value: float | str

    @classmethod
    def fit(cls, dataset: Dataset, column: str, positions: Array | None = None) -> FillMissing:
        """The mean of a column of numbers, the most frequent value of a column of texts."""
        counts: dict[str, int] = {}
        total, known = 0.0, 0
        for rows, values in read_chunks(dataset, column, positions):
            if values.dtype == object and all(isinstance(value, str) for value in values):
                for value in filter(None, values):
                    counts[value] = counts.get(value, 0) + 1
                continue
            numbers = _numbers(values, column, rows)
            total += float(np.nansum(numbers))
            known += int((~np.isnan(numbers)).sum())
        if not known and not counts:
            raise DataError(
                f"column {column!r} has no values at all\nleave it out, or fill it in the data"
            )
        # of equally frequent values the first in the alphabet, whatever the order of rows
        fill = min(counts, key=lambda text: (-counts[text], text)) if counts else total / known
        return cls(column, fill)

    def apply(self, array: Array, positions: Array | None = None) -> Array:
        """The values with the missing ones replaced."""
        if isinstance(self.value, str):
            return np.where(array == "", self.value, array).astype(object)
        numbers = _numbers(array, self.column, positions)
        return np.where(np.isnan(numbers), self.value, numbers).astype(
            array.dtype if array.dtype.kind == "f" else np.float64
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": "FillMissing", "column": self.column, "value": self.value}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FillMissing:
        return cls(str(record["column"]), record["value"])


def _numbers(values: Array, column: str, positions: Array | None) -> Array:
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    row = positions[0] if positions is not None and len(positions) else 0
    raise DataError(
        f"column {column!r} does not have numbers of one shape: row {row} has "
        f"{values[0] if len(values) else None!r:.80}\n"
        "encode texts with OneHotColumn or ClassLabels"
    )
