"""Parquet, Arrow IPC and Feather files, and folders that Hugging Face's `datasets` saved.

Arrow files are memory-mapped: rows are read from disk where they are needed. Of a Parquet file,
whole row groups are decoded, and the latest ones are kept in memory up to a limit.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import DataError, PackageMissing
from onward.graph.paths import check_exists
from onward.message_text import first_line
from onward.runner.data.arrow_columns import column_of, to_batch
from onward.runner.data.dataset import (
    TEXT,
    Array,
    Column,
    Dataset,
    JoinedDatasets,
    assign_rows,
    check_positions,
    choose_columns,
    empty_batch,
)
from onward.runner.data.dataset_features import array_shape, class_names, read_features
from onward.runner.data.field_types import COLUMNS, check_types

IMAGE_SHAPE = (3, None, None)  # of images in any size
_KEPT_BYTES = 256 << 20  # of decoded row groups


def import_pyarrow(source: object) -> Any:
    """The package pyarrow, with its readers."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise PackageMissing(
            f"{source} is read with pyarrow, which is not installed\n"
            "install it with: pip install 'onward[data]'"
        ) from None
    return pyarrow


def readable_table(table: Any) -> Any:
    """A table that a program holds, of the types that rows can be taken of.

    Whole numbers and booleans become floats where some are missing; string views become strings.
    """
    import pyarrow

    table, fields = _without_views(table), []
    for field in table.schema:
        kind = field.type
        is_whole = pyarrow.types.is_integer(kind) or pyarrow.types.is_boolean(kind)
        if is_whole and table[field.name].null_count:
            kind = pyarrow.float64()
        fields.append(field.with_type(kind))
    return table.cast(pyarrow.schema(fields, table.schema.metadata))


def _without_views(table: Any) -> Any:
    """The table with strings in place of string views, of which pyarrow takes no rows."""
    for place, field in enumerate(table.schema):
        if "_view" in str(field.type):
            column = _column_without_views(table.column(place))
            table = table.set_column(place, field.with_type(column.type), column)
    return table


def _column_without_views(column: Any) -> Any:
    import pyarrow

    large = {
        pyarrow.string_view(): pyarrow.large_string(),
        pyarrow.binary_view(): pyarrow.large_binary(),
    }
    kind = column.type
    if not pyarrow.types.is_dictionary(kind):
        return column.cast(large[kind]) if kind in large else column
    if kind.value_type not in large:
        return column
    parts = [
        pyarrow.DictionaryArray.from_arrays(
            part.indices, part.dictionary.cast(large[kind.value_type])
        )
        for part in column.chunks
    ]
    return pyarrow.chunked_array(parts, pyarrow.dictionary(kind.index_type, large[kind.value_type]))


class ArrowDataset:
    """A table of pyarrow, in memory or memory-mapped."""

    def __init__(
        self,
        table: Any,
        source: object = "the table",
        types: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        image_shape: tuple[int | None, ...] = IMAGE_SHAPE,
    ) -> None:
        self._table, self._source = table, source
        self.columns = _columns(table.schema, source, types, columns, image_shape)
        self.class_names = class_names(read_features(table.schema))
        if not len(self):
            raise DataError(f"{source} is empty: it has no rows")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self._source)
        names = choose_columns(self.columns, columns, self._source)
        found = self._table.select(names).take(rows)
        return _batches(found, self.columns, rows, self._source)


class ParquetDataset:
    """The rows of a Parquet file; the row groups that were used last stay in memory."""

    def __init__(
        self,
        path: Path,
        *,
        types: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        image_shape: tuple[int | None, ...] = IMAGE_SHAPE,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        check_exists(path, "data file")
        pyarrow = import_pyarrow(path)
        try:
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        except (pyarrow.ArrowException, OSError) as error:
            raise _broken(path, "Parquet", error) from error
        self.path, self._pyarrow = path, pyarrow
        schema = self._file.schema_arrow
        self.columns = _columns(schema, path, types, columns, image_shape)
        self.class_names = class_names(read_features(schema))
        groups = self._file.metadata
        sizes = [groups.row_group(place).num_rows for place in range(groups.num_row_groups)]
        self._starts = np.cumsum([0, *sizes])
        if not len(self):
            raise DataError(f"{path} is empty: it has no rows")
        self._kept: OrderedDict[tuple[int, tuple[str, ...]], Any] = OrderedDict()
        self._kept_bytes, self._lock = kept_bytes, threading.Lock()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, positions: Array, columns: Sequence[str] | None = None) -> dict[str, Array]:
        rows = check_positions(positions, len(self), self.path)
        names = choose_columns(self.columns, columns, self.path)
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        found = {name: empty_batch(len(rows), self.columns[name]) for name in names}
        for group in np.unique(groups):
            places = np.flatnonzero(groups == group)
            part = self._group(int(group), tuple(names)).take(rows[places] - self._starts[group])
            batch = _batches(part, self.columns, rows[places], self.path)
            for name in names:
                assign_rows(found[name], places, batch[name])
        return found

    def _group(self, group: int, names: tuple[str, ...]) -> Any:
        """A decoded row group; one thread at a time, because a ParquetFile has one position."""
        with self._lock:
            table = self._kept.pop((group, names), None)
            if table is None:
                try:
                    table = _without_views(self._file.read_row_group(group, columns=list(names)))
                except (self._pyarrow.ArrowException, OSError) as error:
                    raise _broken(self.path, "Parquet", error) from error
            self._kept[group, names] = table
            while len(self._kept) > 1 and self._size() > self._kept_bytes:
                self._kept.popitem(last=False)
            return table

    def _size(self) -> int:
        return sum(int(table.nbytes) for table in self._kept.values())


def open_arrow(
    path: Path,
    types: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    image_shape: tuple[int | None, ...] = IMAGE_SHAPE,
) -> ArrowDataset:
    """An Arrow IPC file, a stream, or a Feather file, memory-mapped."""
    check_exists(path, "data file")
    pyarrow = import_pyarrow(path)
    try:
        mapped = pyarrow.memory_map(str(path))
        try:
            table = pyarrow.ipc.open_file(mapped).read_all()
        except pyarrow.ArrowInvalid:  # `datasets` writes streams, which have no footer
            mapped.seek(0)
            table = pyarrow.ipc.open_stream(mapped).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise _broken(path, "Arrow", error) from error
    return ArrowDataset(_without_views(table), path, types, columns, image_shape)


def is_saved_dataset(folder: Path) -> bool:
    """Whether `datasets` saved one dataset in a folder (`save_to_disk`)."""
    return (folder / "state.json").is_file()


def open_saved_dataset(
    folder: Path,
    types: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    image_shape: tuple[int | None, ...] = IMAGE_SHAPE,
) -> Dataset:
    """A folder that Hugging Face's `datasets` saved; its .arrow files in the order of its state."""
    state = folder / "state.json"
    try:
        listed = json.loads(state.read_text("utf-8"))["_data_files"]
        paths = [folder / Path(entry["filename"]).name for entry in listed]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{state} does not list the files of the dataset: {error!r}\nsave the dataset again"
        ) from error
    if not paths:
        raise DataError(f"{folder} is empty: {state.name} lists no files")
    parts = [open_arrow(path, types, columns, image_shape) for path in paths]
    return parts[0] if len(parts) == 1 else JoinedDatasets(parts, paths)


def _columns(
    schema: Any,
    source: object,
    types: Mapping[str, str] | None,
    wanted: Sequence[str] | None,
    image_shape: tuple[int | None, ...],
) -> dict[str, Column]:
    """The columns that are wanted, None: all; the others may be of any type."""
    features = read_features(schema)
    check_types(types, schema.names, source)
    known = dict.fromkeys(schema.names, COLUMNS[TEXT])
    return {
        name: COLUMNS[types[name]]
        if types and name in types
        else column_of(
            name,
            schema.field(name).type,
            source,
            image_shape,
            array_shape(features.get(name, {})),
        )
        for name in choose_columns(known, wanted, source)
    }


def _batches(
    table: Any, columns: Mapping[str, Column], rows: Array, source: object
) -> dict[str, Array]:
    return {
        name: to_batch(table.column(name), columns[name], name, rows, source)
        for name in table.column_names
    }


def _broken(path: Path, kind: str, error: Exception) -> DataError:
    why = first_line(error)
    return DataError(
        f"{path} is truncated, or not {kind}: {why}\nwrite the file again, or check its name"
    )
