"""The rows of a DataLoader of torch, in an order that does not change. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.data.python_values import is_array, to_numpy


def is_data_loader(source: Any) -> bool:
    """Whether an object is a DataLoader of torch."""
    known = {(each.__module__.split(".")[0], each.__name__) for each in type(source).__mro__}
    return ("torch", "DataLoader") in known


def loader_rows(loader: Any) -> Iterator[Any]:
    """Each row of each batch: a dict or a tuple, as the batches are.

    A run shuffles rows by its own seed and holds out some of them by position, so that they come
    here in the order of the dataset: those that the loader's sampler draws, collated as it does.
    """
    if loader.batch_sampler is None:  # it has no batches
        yield from loader
        return
    for number, batch in enumerate(_batches(loader)):
        yield from _rows(batch, number)


def _batches(loader: Any) -> Iterator[Any]:
    is_finite = hasattr(loader.sampler, "__len__")  # that of a stream is not
    drawn = list(loader.sampler) if is_finite and loader.batch_size is not None else []
    if not drawn or not all(isinstance(each, (int, np.integer)) for each in drawn):
        yield from loader  # a stream, or a sampler of batches
        return
    drawn.sort()
    for start in range(0, len(drawn), loader.batch_size):
        rows = [loader.dataset[each] for each in drawn[start : start + loader.batch_size]]
        yield loader.collate_fn(rows)


def _rows(batch: Any, number: int) -> list[Any]:
    """The rows of a batch, whose parts have one more axis, the first."""
    if isinstance(batch, Mapping):
        return [dict(zip(batch, row)) for row in _together(batch.values(), number)]
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], str):
        return list(batch)
    if isinstance(batch, (tuple, list)):
        rows = _together(batch, number)
        names = getattr(batch, "_fields", None)
        return rows if names is None else [dict(zip(names, row)) for row in rows]
    if is_array(batch) and batch.shape:
        return list(to_numpy(batch))
    raise DataError(
        f"batch {number} of the DataLoader has {type(batch).__name__} where an array of rows "
        "was expected\nlet collate_fn make dicts or tuples of tensors, one row after another"
    )


def _together(parts: Iterable[Any], number: int) -> list[tuple[Any, ...]]:
    rows = [_rows(each, number) for each in parts]
    if len({len(each) for each in rows}) > 1:
        raise DataError(
            f"batch {number} of the DataLoader has parts of different lengths\n"
            "let collate_fn make tensors whose first axis is the rows of the batch"
        )
    return list(zip(*rows))
