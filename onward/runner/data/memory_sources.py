"""Open what a Python program holds: tables, arrays, pairs, rows, datasets of torch.

Packages are recognised without importing them: a table by the Arrow interface that polars, DuckDB
and others have, an array by numpy's, a dataset of torch by its methods.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onward.errors import DataError
from onward.runner.data import arrow_files
from onward.runner.data.data_loader import is_data_loader, loader_rows
from onward.runner.data.dataset import Dataset
from onward.runner.data.in_memory import (
    MEMORY_LIMIT,
    ArrayDataset,
    PairedDataset,
    from_rows,
    from_table,
    name_inputs,
)
from onward.runner.data.joined_columns import JoinedColumns
from onward.runner.data.python_values import is_array, to_numpy
from onward.runner.data.reader_options import ReaderOptions

_BUNCH = frozenset({"data", "target", "DESCR"})  # what scikit-learn's load_iris() gives


def open_memory(source: Any, options: ReaderOptions, memory_limit: int) -> Dataset:
    """Open data that is in memory."""
    check_is_data("the data", source)
    table = _arrow_table(source)
    if table is not None:
        options.only("a table", "types")
        return arrow_files.ArrowDataset(table, types=options.types, columns=options.columns)
    options.only("data in memory")
    if hasattr(source, "read") and hasattr(source, "columns"):
        opened: Dataset = source  # it is a dataset already
        return opened
    if hasattr(source, "read") and hasattr(source, "seek"):
        raise DataError(
            f"the data is an open file ({type(source).__name__})\n"
            "give its path, or read it into a table first"
        )
    if isinstance(source, Mapping) and source.keys() >= _BUNCH:
        source = (source["data"], source["target"])
    if _is_pair(source):
        return _open_pair(source[0], source[1], memory_limit)
    if isinstance(source, Mapping):
        return ArrayDataset(source)
    if _is_frame(source):
        return from_table(source)
    if is_array(source) or hasattr(source, "toarray"):
        array = to_numpy(source)
        names = array.dtype.names
        return ArrayDataset({"x": array} if names is None else {n: array[n] for n in names})
    if isinstance(source, (tuple, list)) and source and all(map(is_array, source)):
        raise DataError(
            f"the data is {len(source)} arrays, of which none is named\n"
            "give a pair (x, y), ((a, b), y) for several inputs, or a dict of arrays by column"
        )
    rows = _rows(source)
    if rows is not None:
        return from_rows(rows, memory_limit)
    raise DataError(
        f"no data can be read from an object of the class {type(source).__name__}\n"
        "give a path, a list of paths, a dict of arrays, a pair (x, y), a table, or rows: dicts or "
        "tuples"
    )


def read_once(source: Any) -> Any:
    """Rows that come one after another, read into memory: an iterator gives them only once."""
    if _rows(source) is None or isinstance(source, (list, tuple)) or _is_known(source):
        return source
    return open_memory(source, ReaderOptions(), MEMORY_LIMIT)


def check_is_data(what: str, source: Any) -> None:
    """Refuse a function or a class where its result was meant."""
    if isinstance(source, type):
        raise DataError(
            f"{what} is the class {source.__name__}, not an object of it\n"
            f"make one: {source.__name__}({_needed_arguments(source)})"
        )
    if inspect.isroutine(source) or isinstance(source, functools.partial):
        name = getattr(getattr(source, "func", source), "__name__", "")
        raise DataError(
            f"{what} is the function {name}, not what it returns\n"
            f"call it: {name}({_needed_arguments(source)})"
        )


def _needed_arguments(function: Any) -> str:
    """The names of the arguments that a call needs, as they stand between its brackets."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "..."
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.default is inspect.Parameter.empty]
    return ", ".join(
        each.name if each.kind in positional else f"{each.name}=..."
        for each in needed
        if each.kind in (*positional, inspect.Parameter.KEYWORD_ONLY)
    )


def _arrow_table(source: Any) -> Any:
    """A table of pyarrow, or of a package that gives its tables in Arrow's form; else None."""
    module = type(source).__module__.split(".")[0]
    if module == "polars" and hasattr(source, "collect"):
        source = source.collect()  # a LazyFrame
    if module == "datasets" and hasattr(source, "with_format"):
        source = source.with_format("arrow")[:]  # of Hugging Face
        module = "pyarrow"
    if module == "pyarrow" and hasattr(source, "schema"):
        return arrow_files.readable_table(source)
    if module == "pandas" or not (
        hasattr(source, "__arrow_c_stream__") and hasattr(source, "columns")
    ):
        return None
    pyarrow = arrow_files.import_pyarrow(f"a table of {module}")
    return arrow_files.readable_table(pyarrow.table(source))


def _is_frame(source: Any) -> bool:
    """Whether an object is a DataFrame of pandas, or one like it."""
    return type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")


def _is_known(source: Any) -> bool:
    """Whether an object is read by column, not by row."""
    return (
        isinstance(source, (Mapping, str, bytes))
        or hasattr(source, "read")
        or is_array(source)
        or (hasattr(source, "columns") and hasattr(source, "__len__"))
    )


def _is_pair(source: Any) -> bool:
    """Whether data is a pair of arrays or tables (x, y), not two rows."""
    if not isinstance(source, (tuple, list)) or len(source) != 2:
        return False
    if isinstance(source, list):  # of rows, unless they are arrays
        return all(map(_is_whole, source))
    return all(_is_whole(each) or isinstance(each, list) for each in source) or (
        isinstance(source[0], tuple) and all(map(_is_whole, source[0])) and _is_whole(source[1])
    )


def _is_whole(part: Any) -> bool:
    """Whether a part of a pair has all rows: an array, a table, or a dict of arrays or lists."""
    if isinstance(part, Mapping):
        return bool(part) and all(
            isinstance(each, list) or (is_array(each) and each.shape) for each in part.values()
        )
    return is_array(part) or hasattr(part, "toarray") or hasattr(part, "__arrow_c_stream__")


def _open_pair(x: Any, y: Any, memory_limit: int) -> PairedDataset:
    """The columns of x, which the inputs take, and the one of y, the target."""
    is_table = isinstance(x, Mapping) or hasattr(x, "columns")
    named = {} if is_table else name_inputs(x)
    inputs = open_memory(named or x, ReaderOptions(), memory_limit)
    if isinstance(y, Mapping) or hasattr(y, "columns"):
        target = open_memory(y, ReaderOptions(), memory_limit)
        if len(target.columns) > 1:
            target = JoinedColumns(target, list(target.columns), _free_name(inputs))
        return PairedDataset(inputs, target)
    given = getattr(y, "name", None)  # of a series
    name = given if isinstance(given, str) and given else _free_name(inputs)
    return PairedDataset(inputs, ArrayDataset({name: y}))


def _free_name(inputs: Dataset) -> str:
    return next(name for name in ("y", "target", "the target") if name not in inputs.columns)


def _rows(source: Any) -> Iterator[Any] | None:
    """The rows of an iterable, a DataLoader, or a dataset of torch; None: it has none."""
    if isinstance(source, (bytes, bytearray, str)):
        return None
    if is_data_loader(source):
        return loader_rows(source)
    if isinstance(source, Iterable):
        return iter(source)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return (source[place] for place in range(len(source)))
    return None
