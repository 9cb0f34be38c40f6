"""Calibration: the batches that a model is measured and tuned on, from any kind of data.

data = Calibration("rows.npz", inputs, batch=8)
for feeds in data.batches(): ...
for feeds, targets in data.labelled_batches(): ...
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import DataError, FeedError, OptionError
from onward.graph.dtypes import numpy_type
from onward.graph.paths import check_exists
from onward.graph.random_feeds import random_feeds
from onward.graph.signature import check_feeds, check_names
from onward.message_text import format_sizes
from onward.runner.data.dataset import Dataset, choose_columns
from onward.runner.data.open_data import open_data

Array = np.ndarray[Any, Any]
Feeds = dict[str, Any]
Labelled = tuple[Feeds, Any]  # feeds, and targets or None

BATCH = 8  # rows of a batch if the user gives no number
_RANDOM_BATCHES = 8


class Calibration:
    """Batches of feeds, which can be read as often as needed; one batch is in memory at a time.

    Args:
        source: what to read:
            None: random feeds (`is_random`); they show that a model runs, not how good it is
            a path, a table, a dict of arrays: rows, divided into batches
            a list or an iterable of feeds (dicts), or of (feeds, targets): one batch each
            a function without arguments that returns such an iterable
        inputs: the model's inputs (`InferenceSession.get_inputs()`, or NodeArgs)
        target: the column of rows that holds the targets of a metric or a loss
        batch: rows of a batch; a model that fixes its first dimension decides itself
        limit: the number of batches to read at most
        sizes: sizes of dynamic dimensions, for random feeds
        seed: of random feeds
    """

    def __init__(
        self,
        source: Any,
        inputs: Iterable[Any],
        *,
        target: str | None = None,
        batch: int | None = None,
        limit: int | None = None,
        sizes: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        for name, number in (("batch", batch), ("limit", limit)):
            if number is not None and number < 1:
                raise OptionError(f"{name} must be at least 1, not {number}")
        self.inputs = list(inputs)
        self.target = target
        self.is_random = source is None
        self._limit = limit
        self._read = self._reader(source, batch or BATCH, dict(sizes or {}), seed)

    def batches(self) -> Iterator[Feeds]:
        """The feeds of each batch."""
        return (feeds for feeds, _ in self.labelled_batches())

    def labelled_batches(self) -> Iterator[Labelled]:
        """The feeds and the targets of each batch; None where the data has no targets."""
        count = 0
        for feeds, targets in itertools.islice(self._read(), self._limit):
            yield self._check(feeds, count), targets
            count += 1
        if not count:
            raise DataError("the data has no batches\ngive at least one row, or one set of feeds")

    def first(self) -> Feeds:
        """The feeds of the first batch."""
        return next(self.batches())

    def _reader(
        self, source: Any, batch: int, sizes: Mapping[str, int], seed: int
    ) -> Callable[[], Iterator[Labelled]]:
        if source is None:
            return lambda: self._random(sizes, seed)
        if isinstance(source, Calibration):
            return source.labelled_batches
        if callable(source):
            return lambda: map(_to_labelled, source())
        if isinstance(source, Mapping):
            return self._arrays_reader(source, batch)
        if isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".npz":
            return self._arrays_reader(_read_arrays(_existing(source)), batch)
        if _is_rows(source):
            data = open_data(source, target=self.target)
            return lambda: self._rows(data, batch)
        if not isinstance(source, Iterable):
            raise DataError(
                f"data must be a file, a table, arrays or feeds, not {type(source).__name__}\n"
                "give a path, a dict of arrays by input, or a list of feeds"
            )
        if iter(source) is source:  # it can be read once: keep it on disk
            return self._spooled(source)
        return lambda: map(_to_labelled, source)

    def _random(self, sizes: Mapping[str, int], seed: int) -> Iterator[Labelled]:
        for number in range(_RANDOM_BATCHES):
            yield random_feeds(self.inputs, sizes, seed + number), None

    def _arrays_reader(
        self, arrays: Mapping[str, Any], batch: int
    ) -> Callable[[], Iterator[Labelled]]:
        """Arrays by name: rows along their first axis, or one set of feeds."""
        given = {name: np.asarray(array) for name, array in arrays.items()}
        targets = given.pop(self.target, None) if self.target is not None else None
        if self.target is not None and targets is None:
            names = ", ".join(given)
            raise DataError(f"the data has no array {self.target!r} for the target; it has {names}")
        known = {arg.name: arg for arg in self.inputs}
        if set(given) == {f"arr_{place}" for place in range(len(known))}:
            given = dict(zip(known, given.values(), strict=True))  # of np.savez without names
        given = {name: array for name, array in given.items() if name in known or len(given) == 1}
        if len(given) == len(known) == 1:  # one input: its name does not matter
            given = dict(zip(known, given.values(), strict=True))
        check_names(given, known)
        if missing := [name for name in known if name not in given]:
            raise FeedError(f"input {missing[0]!r} is missing in the data; it has {list(arrays)}")
        rows = _row_count(given, known)
        if rows is None:
            return lambda: iter([(dict(given), targets)])
        step = _fixed_batch(known.values()) or batch
        return lambda: _slices(given, targets, known, rows, step)

    def _rows(self, data: Dataset, batch: int) -> Iterator[Labelled]:
        names = [arg.name for arg in self.inputs]
        columns = [name for name in data.columns if name != self.target]
        if len(names) == 1 and names[0] not in columns and len(columns) == 1:
            source = {names[0]: columns[0]}
        else:
            source = {name: name for name in choose_columns(data.columns, names, "the data")}
        fixed, rows = _fixed_batch(self.inputs), len(data)
        step = fixed or batch
        wanted = [*source.values(), *([self.target] if self.target else [])]
        for start in range(0, rows - rows % step if fixed else rows, step):
            read = data.read(np.arange(start, min(start + step, rows)), wanted)
            yield (
                {name: read[column] for name, column in source.items()},
                (read[self.target] if self.target else None),
            )

    def _spooled(self, source: Iterable[Any]) -> Callable[[], Iterator[Labelled]]:
        folder = tempfile.mkdtemp(prefix="onward-calibration-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        files: list[Path] = []
        for feeds, targets in map(_to_labelled, itertools.islice(source, self._limit)):
            arrays = {f"x{place}": np.asarray(feed) for place, feed in enumerate(feeds.values())}
            if targets is not None:
                arrays["targets"] = np.asarray(targets)
            files.append(Path(folder) / f"{len(files)}.npz")
            np.savez(files[-1], allow_pickle=False, names=np.array(list(feeds)), **arrays)
        return lambda: map(_read_spooled, files)

    def _check(self, feeds: Feeds, number: int) -> Feeds:
        """Feeds with the types that the model takes; names, types and shapes are checked."""
        known = {arg.name: arg for arg in self.inputs}
        check_names(feeds, known)
        ready = {name: _cast(feed, known[name]) for name, feed in feeds.items()}
        check_feeds(ready, self.inputs, [])
        for name, feed in ready.items():
            if np.issubdtype(feed.dtype, np.floating) and not np.isfinite(feed).all():
                raise DataError(
                    f"batch {number} of the data has NaN or infinite numbers in {name!r}\n"
                    "remove these rows: no range can be measured with them"
                )
        return ready


def _is_rows(source: Any) -> bool:
    """Whether `open_data` reads it: a file, a folder, a table."""
    if isinstance(source, (str, os.PathLike)):
        return True
    return (
        hasattr(source, "columns") or hasattr(source, "to_numpy") or isinstance(source, np.ndarray)
    )


def _existing(path: str | os.PathLike[str]) -> Path:
    check_exists(Path(path), "data file")
    return Path(path)


def _read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:  # damaged, or pickled objects
        raise DataError(
            f"{path} cannot be read: {error}\nwrite it with np.savez, with only numbers"
        ) from error


def _to_labelled(item: Any) -> Labelled:
    if isinstance(item, Mapping):
        return dict(item), None
    if isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], Mapping):
        return dict(item[0]), item[1]
    raise DataError(
        f"a batch must be a dict of arrays by input, or a pair of it and targets, "
        f"not {type(item).__name__}\ngive [{{'x': x}}, ...] or [({{'x': x}}, y), ...]"
    )


def _read_spooled(file: Path) -> Labelled:
    with np.load(file, allow_pickle=False) as loaded:
        names = loaded["names"].tolist()
        feeds = {name: loaded[f"x{place}"] for place, name in enumerate(names)}
        return feeds, loaded["targets"] if "targets" in loaded.files else None


def _cast(feed: Any, arg: Any) -> Any:
    """A feed in the input's type where no number changes: int32 ids for int64, float64 data."""
    array = np.asarray(feed)
    dtype = numpy_type(arg.type)
    if dtype is None or array.dtype == dtype:
        return array
    if array.dtype.kind == dtype.kind or (dtype.kind == "f" and array.dtype.kind in "iub"):
        return array.astype(dtype)
    if dtype.name == "bfloat16" and array.dtype.kind in "fiub":  # no .npz and no table has it
        return array.astype(dtype)
    return array  # check_feeds names the mismatch


def _is_ranked(arg: Any) -> bool:
    """Whether the model says how many dimensions an input has."""
    return bool(getattr(arg, "is_ranked", True))


def _is_stacked(array: Array, arg: Any) -> bool:
    """Whether an array has one more axis than its input, which counts sets of feeds."""
    return _is_ranked(arg) and array.ndim == len(arg.shape) + 1


def _row_count(arrays: Mapping[str, Array], inputs: Mapping[str, Any]) -> int | None:
    """The number of rows if the first axes are rows; None if the arrays are one set of feeds."""
    counts = set()
    for name, array in arrays.items():
        shape, is_ranked = inputs[name].shape, _is_ranked(inputs[name])
        if not shape and array.ndim == 0:
            continue  # a scalar, the same for each batch
        if is_ranked and array.ndim not in (len(shape), len(shape) + 1):
            expected = format_sizes(shape)
            raise FeedError(
                f"{name!r} has {array.ndim} dimensions in the data; the model takes ({expected})"
            )
        counts.add(len(array))
    if len(counts) != 1:
        return None
    fixed = _fixed_batch(inputs.values())
    stacked = any(_is_stacked(array, inputs[name]) for name, array in arrays.items())
    first = [inputs[name].shape[0] for name in arrays if len(inputs[name].shape)]
    if not stacked and any(isinstance(size, int) and size != fixed for size in first):
        return None  # sizes that differ are no batch
    return counts.pop()


def _fixed_batch(inputs: Iterable[Any]) -> int | None:
    """The size of the first dimension that the model's inputs fix; None if it is dynamic."""
    sizes = {arg.shape[0] for arg in inputs if len(arg.shape) and isinstance(arg.shape[0], int)}
    return sizes.pop() if len(sizes) == 1 else None


def _slices(
    arrays: Mapping[str, Array],
    targets: Array | None,
    inputs: Mapping[str, Any],
    rows: int,
    step: int,
) -> Iterator[Labelled]:
    stacked = any(_is_stacked(array, inputs[name]) for name, array in arrays.items())
    if stacked:  # the first axis counts sets of feeds
        for row in range(rows):
            yield (
                {n: a[row] if _is_stacked(a, inputs[n]) else a for n, a in arrays.items()},
                None if targets is None else targets[row],
            )
        return
    fixed = _fixed_batch(inputs.values())
    if fixed and rows < fixed:
        raise DataError(f"the data has {rows} rows; the model takes {fixed} at once")
    for start in range(0, rows - rows % step if fixed else rows, step):
        part = slice(start, start + step)
        feeds = {name: array[part] if array.ndim else array for name, array in arrays.items()}
        yield feeds, None if targets is None else targets[part]
