"""Dataset: rows in named columns, read by position. Also parts of datasets, and joined ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from onward.errors import ColumnMissing, DataError
from onward.message_text import format_sizes, suggest_names

Array = np.ndarray[Any, Any]

TEXT, IMAGE = "text", "image"
UNREADABLE = "unreadable"  # such as structs, and lists of texts: refused where they are read
_SIZES = {TEXT: 64, IMAGE: 1}  # bytes; texts are guessed
_CHUNK = 1024  # rows that are read at once where a whole column is needed


@dataclass(frozen=True)
class Column:
    """What one row has in a column: its type, "text" or "image", and its shape.

    A size of None varies between rows. A batch of such a column, or of texts, is an array of
    objects, one for each row; any other batch is one array of shape (rows, *shape).

    >>> Column("float32", (3, 4))
    Column(dtype=dtype('float32'), shape=(3, 4))
    """

    dtype: Any  # a numpy dtype, or "text", or "image": uint8 of (channels, height, width)
    shape: tuple[int | None, ...] = ()
    why: str = field(default="", compare=False, repr=False)  # it cannot be read

    def __post_init__(self) -> None:
        if self.dtype not in (TEXT, IMAGE, UNREADABLE):
            object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def is_number(self) -> bool:
        return self.dtype not in (TEXT, IMAGE, UNREADABLE)

    def __str__(self) -> str:
        sizes = f"[{format_sizes(self.shape)}]" if self.shape else ""
        return f"{self.dtype}{sizes}"


class Dataset(Protocol):
    """Rows in named columns, which any thread may read by position, in any order."""

    def __len__(self) -> int: ...

    @property
    def columns(self) -> Mapping[str, Column]: ...

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """The rows at these positions, by column; only of these columns, if they are given."""
        ...


def row_bytes(columns: Iterable[Column]) -> int | None:
    """About the bytes of a row in these columns; None where arrays differ in size.

    >>> row_bytes([Column("float32", (3, 4)), Column("int64")])
    56
    """
    total = 0
    for column in columns:
        if None in column.shape:
            return None
        sizes = [size for size in column.shape if size is not None]
        one = column.dtype.itemsize if column.is_number else _SIZES[column.dtype]
        total += math.prod(sizes) * one
    return total


def choose_columns(
    known: Mapping[str, Column], wanted: Sequence[str] | None, source: object
) -> list[str]:
    """The names of the columns to read: all that can be, or those that are wanted and exist."""
    if wanted is None:
        return [name for name, column in known.items() if column.dtype != UNREADABLE]
    for name in wanted:
        if name not in known:
            hint = suggest_names(name, known, "its columns are")
            raise ColumnMissing(f"{source} has no column {name!r}\n{hint}")
        if known[name].dtype == UNREADABLE:
            raise DataError(known[name].why)
    return list(wanted)


def check_positions(positions: Any, count: int, source: object) -> Array:
    """Positions as an int64 array, each below the number of rows."""
    rows = np.asarray(positions)
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise DataError(f"positions must be a list of whole numbers, not {positions!r}")
    if len(rows) and not (rows.min() >= 0 and rows.max() < count):
        bad = rows[(rows < 0) | (rows >= count)][0]
        raise DataError(f"{source} has no row {bad}: it has {count:,}, from 0 to {count - 1:,}")
    return rows.astype(np.int64, copy=False)


def stack_rows(values: Sequence[Any], column: Column) -> Array:
    """One batch of the values of rows: dense, or an array of objects where sizes vary."""
    batch = empty_batch(len(values), column)
    assign_rows(batch, range(len(values)), values)
    return batch


def empty_batch(rows: int, column: Column) -> Array:
    """An array for a batch of a column."""
    if column.dtype == TEXT or None in column.shape:
        return np.empty(rows, object)
    sizes = [size for size in column.shape if size is not None]
    return np.empty((rows, *sizes), np.uint8 if column.dtype == IMAGE else column.dtype)


def assign_rows(batch: Array, places: Any, values: Any) -> None:
    """batch[places] = values, without stacking the values of rows that are objects."""
    if batch.dtype != object:
        batch[places] = values
        return
    for place, value in zip(places, values):
        batch[place] = value


def read_chunks(
    dataset: Dataset, column: str, positions: Array | None = None, rows: int = _CHUNK
) -> Iterator[tuple[Array, Array]]:
    """(positions, values) of a column, some rows at a time, so that memory stays bounded."""
    choose_columns(dataset.columns, [column], "the data")
    chosen = np.arange(len(dataset)) if positions is None else np.asarray(positions)
    for start in range(0, len(chosen), rows):
        some = chosen[start : start + rows]
        yield some, dataset.read(some, [column])[column]


def read_column(dataset: Dataset, column: str, positions: Array | None = None) -> Array:
    """A whole column, such as the labels for a stratified split."""
    chunks = [values for _, values in read_chunks(dataset, column, positions)]
    return np.concatenate(chunks) if chunks else np.zeros(0)


class SelectedColumns:
    """A dataset with some of another's columns; the others are not read."""

    def __init__(self, dataset: Dataset, names: Sequence[str], source: object) -> None:
        chosen = choose_columns(dataset.columns, names, source)
        self._dataset, self._source = dataset, source
        self.columns = {name: dataset.columns[name] for name in chosen}
        self.class_names = names_of_classes(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        return self._dataset.read(positions, choose_columns(self.columns, columns, self._source))


class SelectedRows:
    """A dataset with some of another's rows, such as those that a run held out."""

    def __init__(self, dataset: Dataset, positions: Array) -> None:
        self._dataset = dataset
        self._rows = check_positions(positions, len(dataset), "the data")
        self.columns = dataset.columns
        self.classes: tuple[str, ...] = tuple(getattr(dataset, "classes", ()))  # of images
        self.class_names = names_of_classes(dataset)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), "the data")
        return self._dataset.read(self._rows[rows], columns)


class JoinedDatasets:
    """The rows of several datasets, one after another.

    Columns must have the same names. Types of numbers are promoted (int64 and float64 to float64).
    """

    def __init__(self, parts: Sequence[Dataset], sources: Sequence[object]) -> None:
        self.parts, self._source = tuple(parts), f"{sources[0]} and {len(sources) - 1} more"
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.columns = dict(parts[0].columns)
        self.class_names = names_of_classes(parts[0])
        for part, source in zip(parts[1:], sources[1:]):
            if set(part.columns) != set(self.columns):
                different = set(part.columns) ^ set(self.columns)
                raise ColumnMissing(
                    f"{source} and {sources[0]} have different columns: {min(different)!r} is in "
                    "one of them\ngive files with the same columns, or choose with columns=[...]"
                )
            for name, column in part.columns.items():
                self.columns[name] = _promote(name, self.columns[name], column, sources[0], source)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self._source)
        names = choose_columns(self.columns, columns, self._source)
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        found = {name: empty_batch(len(rows), self.columns[name]) for name in names}
        for owner in np.unique(owners):
            places = np.flatnonzero(owners == owner)
            batch = self.parts[owner].read(rows[places] - self._starts[owner], names)
            for name, values in batch.items():
                assign_rows(found[name], places, values)
        return found


def names_of_classes(dataset: Dataset) -> Mapping[str, tuple[str, ...]]:
    """The names of classes by column, where a file has names for the numbers of a column."""
    found: Mapping[str, tuple[str, ...]] = getattr(dataset, "class_names", {})
    return found


def _promote(name: str, a: Column, b: Column, first: object, second: object) -> Column:
    """The column that holds the rows of both."""
    if UNREADABLE in (a.dtype, b.dtype):
        return a if a.dtype == UNREADABLE else b
    same = a.dtype == b.dtype or (a.is_number and b.is_number)
    if same and len(a.shape) == len(b.shape):
        dtype = np.promote_types(a.dtype, b.dtype) if a.is_number else a.dtype
        return Column(dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape)))
    raise DataError(
        f"column {name!r} is {a} in {first}, but {b} in {second}\n"
        f"say what it is, such as types={{{name!r}: 'text'}}, or read the files separately"
    )
