"""FeedSource: how one feed of a session is made of columns of data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.graph.dtypes import ELEMENT_TYPES
from onward.message_text import format_sizes, list_names
from onward.runner.data.dataset import Array
from onward.runner.data.encode import Encoder, encode_column, encoder_from_json
from onward.runner.data.number_range import cast_numbers


@dataclass(frozen=True)
class FeedSource:
    """How one feed is made: of which columns, each through which encoders.

    Several columns are joined along the last axis, in their order. `dtype` and `shape` are the
    feed's; None in the shape is any size, and the first is the number of rows.

    >>> source = FeedSource("x", ("a", "b"), {}, "float32", (None, 2))
    >>> source.make({"a": np.array([1, 3]), "b": np.array([2, 4])}).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """

    feed: str
    columns: tuple[str, ...]
    encoders: Mapping[str, tuple[Encoder, ...]]  # by column
    dtype: str
    shape: tuple[int | None, ...]
    transpose: tuple[int, ...] = ()  # the order of axes, for images in another layout

    def make(self, columns: Mapping[str, Array], positions: Array | None = None) -> Array:
        """The feed of a batch of columns; `positions` name the rows in errors."""
        parts = [self._encode(name, columns[name], positions) for name in self.columns]
        array = parts[0] if len(parts) == 1 else np.concatenate([_flat(part) for part in parts], 1)
        if self.transpose and array.ndim == len(self.transpose):
            array = array.transpose(self.transpose)
        array = self._reshape(self._cast(array, positions))
        return np.ascontiguousarray(array)

    def to_json(self) -> dict[str, Any]:
        return {
            "feed": self.feed,
            "columns": list(self.columns),
            "encoders": {
                name: [each.to_json() for each in encoders]
                for name, encoders in self.encoders.items()
            },
            "dtype": self.dtype,
            "shape": list(self.shape),
            "transpose": list(self.transpose),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FeedSource:
        encoders = {
            str(name): tuple(encoder_from_json(each) for each in listed)
            for name, listed in record["encoders"].items()
        }
        return cls(
            str(record["feed"]),
            tuple(record["columns"]),
            encoders,
            str(record["dtype"]),
            tuple(record["shape"]),
            tuple(record["transpose"]),
        )

    def _encode(self, name: str, values: Array, positions: Array | None) -> Array:
        array = encode_column(self.encoders.get(name, ()), values, positions)
        if array.dtype != object or self.dtype == "object":
            return array
        return self._pad(name, array, positions)

    def _pad(self, name: str, rows: Array, positions: Array | None) -> Array:
        """Rows of different lengths as one array: zeros after the end, up to the feed's length."""
        for place, row in enumerate(rows):
            if isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.kind in "biuf":
                continue
            advice = "write tokens or numbers into the data, or name another column with inputs"
            what = f"a text ({row!r:.40})" if isinstance(row, str) else f"{row!r:.40}"
            if isinstance(row, np.ndarray):
                what = f"an array of shape ({format_sizes(row.shape)}), of a size of its own,"
                advice = "give every row the same size"
            raise DataError(
                f"{_row(place, positions)}, column {name!r}: {what} cannot be fed to "
                f"{self.feed!r}, which takes {self.dtype}\n{advice}"
            )
        longest = max((len(row) for row in rows), default=0)
        length = self.shape[1] if len(self.shape) == 2 and self.shape[1] else longest
        if longest > length:
            place = next(place for place, row in enumerate(rows) if len(row) > length)
            raise DataError(
                f"{_row(place, positions)}, column {name!r} has {len(rows[place])} values, the "
                f"model's {self.feed!r} takes {length}\nshorten it in the data"
            )
        short = next((place for place, row in enumerate(rows) if len(row) < length), None)
        if short is not None and self._is_fixed_float:
            raise DataError(
                f"{_row(short, positions)}, column {name!r} has {len(rows[short])} values, the "
                f"model's {self.feed!r} takes {length}\npad it in the data, or leave the row out"
            )
        padded = np.zeros((len(rows), length), np.result_type(*rows) if len(rows) else np.int64)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = row
        return padded

    @property
    def _is_fixed_float(self) -> bool:
        """Whether a row has a fixed number of features: only tokens may be fewer."""
        return "float" in self.dtype and len(self.shape) == 2 and bool(self.shape[1])

    def _cast(self, array: Array, positions: Array | None) -> Array:
        wanted = _numpy_type(self.dtype)
        if array.dtype == wanted:
            return array
        if wanted.kind in "iu" and array.dtype.kind == "f":
            wrong = ~(np.isfinite(array) & (array == np.rint(array)))
            if wrong.any():
                place = int(np.argmax(wrong.reshape(len(array), -1).any(1)))
                raise DataError(
                    f"{_row(place, positions)}, {self._names()} has {array[wrong].flat[0]}, which "
                    f"is not a whole number, as {self.feed!r} takes\ncorrect the data"
                )
        return cast_numbers(array, wanted, self.columns, positions)

    def _reshape(self, array: Array) -> Array:
        rest, given = self.shape[1:], array.shape[1:]
        if not self.shape or _fits(given, rest):
            return array
        known = [size for size in rest if size is not None]
        if len(known) == len(rest) and math.prod(known) == math.prod(given):
            return array.reshape(len(array), *known)
        plain = tuple(size for size in given if size != 1)
        for sizes in (plain, (1, *plain), (*plain, 1)):  # an axis of one channel, or one number
            if _fits(sizes, rest):
                return array.reshape(len(array), *sizes)
        raise DataError(
            f"{self._names()} has the shape ({format_sizes(given)}) in a row, the model's "
            f"{self.feed!r} takes ({format_sizes(rest)})\n"
            "give data of that shape, or name other columns"
        )

    def _names(self) -> str:
        word = "column" if len(self.columns) == 1 else "columns"
        return f"{word} {list_names(self.columns)}"


def _fits(given: tuple[int, ...], rest: tuple[int | None, ...]) -> bool:
    return len(given) == len(rest) and all(m in (n, None) for m, n in zip(rest, given))


def _flat(array: Array) -> Array:
    """(rows, ...) as (rows, numbers)."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _numpy_type(name: str) -> np.dtype[Any]:
    """The type of that name, those of ml_dtypes included."""
    found = next((each.dtype for each in ELEMENT_TYPES if each.numpy == name), None)
    if found is None:
        raise DataError(f"{name!r} is not a type of feed")
    return found


def _row(place: int, positions: Array | None) -> str:
    return f"row {place if positions is None else int(positions[place])}"
