"""Means, deviations and categories of columns of single values, in one pass over the rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.message_text import list_names
from onward.runner.data.dataset import TEXT, Array, Dataset
from onward.runner.data.field_types import is_number

_CHUNK = 4096  # rows
_MOST_CATEGORIES = 1000  # of a column of texts that becomes columns of 0 and 1


@dataclass
class ColumnStatistics:
    """The statistics of one column: of its numbers, or its categories."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # of differences to the mean
    categories: set[str] = field(default_factory=set)

    @property
    def std(self) -> float:
        """The standard deviation; 1 for a constant."""
        std = float(np.sqrt(self.squares / max(self.count, 1)))
        return std if std > 1e-12 * max(abs(self.mean), 1e-30) else 1.0

    def add_numbers(self, values: Array) -> None:
        """Merge by Chan's formula, which loses no digits where the mean is large."""
        known = values[~np.isnan(values)]
        if not known.size:
            return
        mean = float(known.mean())
        total = self.count + known.size
        self.squares += float(((known - mean) ** 2).sum())
        self.squares += (mean - self.mean) ** 2 * self.count * known.size / total
        self.mean += (mean - self.mean) * known.size / total
        self.count = total


def compute_statistics(
    dataset: Dataset, names: Sequence[str], positions: Array
) -> Mapping[str, ColumnStatistics]:
    """Read these columns once, some rows at a time: a file of text is parsed once, not by column.

    >>> from onward.runner.data.in_memory import ArrayDataset
    >>> data = ArrayDataset({"a": np.array([1.0, 3.0]), "b": ["x", "y"]})
    >>> found = compute_statistics(data, ["a", "b"], np.arange(2))
    >>> found["a"].mean, found["a"].std, sorted(found["b"].categories)
    (2.0, 1.0, ['x', 'y'])
    """
    found = {name: ColumnStatistics() for name in names}
    if not names:
        return found
    for start in range(0, len(positions), _CHUNK):
        batch = dataset.read(positions[start : start + _CHUNK], list(names))
        for name, statistics in found.items():
            if dataset.columns[name].dtype != TEXT:
                numbers = batch[name].astype(np.float64)
                _check_no_infinity(name, numbers, positions[start : start + _CHUNK])
                statistics.add_numbers(numbers)
                continue
            statistics.categories.update(batch[name].tolist())
            if len(statistics.categories) > _MOST_CATEGORIES:
                check_mixed(name, statistics.categories)
                raise DataError(
                    f"column {name!r} has more than {_MOST_CATEGORIES:,} different texts, too many "
                    f"to one-hot encode\nleave it out: ignore_columns=[{name!r}]"
                )
    return found


def _check_no_infinity(name: str, numbers: Array, positions: Array) -> None:
    """Refuse infinite numbers, whose mean is none."""
    infinite = np.isinf(numbers)
    if infinite.any():
        row = positions[int(np.argmax(infinite))]
        raise DataError(
            f"row {row}, column {name!r} has {numbers[infinite][0]}, which is no number to train "
            "on\ncorrect the data, or leave the field empty: it is then filled with the mean"
        )


def check_mixed(name: str, categories: Collection[Any]) -> None:
    """Refuse texts of which most are numbers: one wrong field made a column of numbers text."""
    texts = [text for text in map(str, categories) if text and not is_number(text)]
    if texts and 2 * len(texts) < len(categories):
        raise DataError(
            f"column {name!r} has {list_names(sorted(texts)[:3])} among its numbers\n"
            f"correct the data (types={{{name!r}: 'float'}} shows the line), or leave it out"
        )
