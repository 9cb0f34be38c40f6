"""What a target column holds: classes, whole numbers or floats, and of which shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.class_labels import are_one_hot
from onward.runner.data.dataset import IMAGE, TEXT, Array, Column, Dataset, read_chunks

_MOST_CLASSES = 10_000


@dataclass(frozen=True)
class TargetFacts:
    """A target column: its type, and its different values where they are few."""

    column: str
    kind: str  # "text", "bool", "int" (single floats too, if all are whole numbers) or "float"
    shape: tuple[int | None, ...]
    values: tuple[Any, ...] = ()  # sorted; of single texts and whole numbers, if few
    class_names: tuple[str, ...] = ()  # of a folder of images, or of a column
    is_one_hot: bool = False  # each row has zeros and a single 1: the place of its class
    is_binary: bool = False  # several numbers in a row, each 0 or 1
    unseen: tuple[Any, ...] = ()  # of the values, those that only held-out data has

    @property
    def is_two(self) -> bool:
        """Whether the rows to train on have two classes."""
        return len(self.class_names or self.values) - len(self.unseen) == 2

    def without_unseen(self) -> TargetFacts:
        """The facts of the rows to train on alone."""
        values = tuple(each for each in self.values if each not in self.unseen)
        return replace(self, values=values, unseen=())

    @property
    def is_discrete(self) -> bool:
        """Whether each row has one of few values."""
        return not self.shape and self.kind != "float" and bool(self.values)


def read_target(
    dataset: Dataset, column: str, positions: Array | None = None, names: Sequence[str] = ()
) -> TargetFacts:
    """Read a target column once."""
    facts = dataset.columns[column]
    if facts.dtype == IMAGE:
        return TargetFacts(column, "float", tuple(facts.shape))
    if None in facts.shape:
        raise DataError(
            f"the target {column!r} has rows of different sizes ({facts})\n"
            "give every row the same size: pad labels with a number, and name it as ignore_index"
        )
    kind = _kind(facts)
    shape = tuple(facts.shape)
    is_whole = kind != "float" or _check_finite(dataset, column, positions)
    if kind == "float" and is_whole and shape in ((), (1,)):
        kind = "int"  # labels that a program wrote as floats
    if shape == (1,) and kind in ("int", "bool"):
        shape = ()  # a column of labels, as Keras saves them
    if shape or kind == "float":
        is_one_hot = is_whole and len(shape) == 1 and _is_one_hot(dataset, column, positions)
        is_binary = is_whole and _is_binary(dataset, column, positions)
        return TargetFacts(column, kind, shape, is_one_hot=is_one_hot, is_binary=is_binary)
    found: set[Any] = set()
    for rows, values in read_chunks(dataset, column, positions):
        if kind == "text" and (values == "").any():
            row = rows[int(np.argmax(values == ""))]
            raise DataError(
                f"row {row} has no value in the target {column!r}\nremove the row, or fill it"
            )
        if values.dtype.kind == "f":
            values = values.astype(np.int64)
        found.update(values.reshape(-1).tolist())
        if len(found) > _MOST_CLASSES:
            found.clear()
            break
    if kind == "text" and not found:
        raise DataError(
            f"the target {column!r} has more than {_MOST_CLASSES:,} different texts, too many "
            "for classes\nname another column: target='...'"
        )
    return TargetFacts(column, kind, (), tuple(sorted(found)), tuple(names))


def check_several(facts: TargetFacts) -> None:
    """A classifier learns nothing from rows that are all alike."""
    if facts.is_discrete and len(facts.values) == 1:
        raise DataError(
            f"every row has {facts.values[0]!r} in the target {facts.column!r}: there is nothing "
            "to learn\nadd rows of other classes, or name another column: target='...'"
        )


def with_held_out(facts: TargetFacts, held_out: Dataset) -> TargetFacts:
    """The facts of a target with the classes that only data to evaluate on has."""
    known = held_out.columns.get(facts.column)
    if known is None or len(facts.values) < 2 or facts.class_names:
        return facts
    if known.dtype == IMAGE or tuple(known.shape) not in ((), (1,)):
        return facts
    other = read_target(held_out, facts.column)
    unseen = tuple(value for value in other.values if value not in facts.values)
    if other.kind != facts.kind or not unseen:
        return facts
    return replace(facts, values=tuple(sorted({*facts.values, *unseen})), unseen=unseen)


def _kind(column: Column) -> str:
    if column.dtype == TEXT:
        return "text"
    return {"b": "bool", "i": "int", "u": "int"}.get(column.dtype.kind, "float")


def _is_one_hot(dataset: Dataset, column: str, positions: Array | None) -> bool:
    """Whether every row has zeros and a single 1."""
    return all(are_one_hot(values).all() for _, values in read_chunks(dataset, column, positions))


def _is_binary(dataset: Dataset, column: str, positions: Array | None) -> bool:
    """Whether every number is 0 or 1."""
    chunks = read_chunks(dataset, column, positions)
    return all(bool(((values == 0) | (values == 1)).all()) for _, values in chunks)


def _check_finite(dataset: Dataset, column: str, positions: Array | None) -> bool:
    """Refuse a missing number; whether all are whole numbers."""
    is_whole = True
    for rows, values in read_chunks(dataset, column, positions):
        bad = ~np.isfinite(values.astype(np.float64)).reshape(len(values), -1).all(1)
        if bad.any():
            raise DataError(
                f"row {rows[int(np.argmax(bad))]} has no number in the target {column!r}\n"
                "remove the row, or fill it"
            )
        is_whole = is_whole and bool((values == np.rint(values)).all())
    return is_whole
