"""Empty batches: feeds without samples, which have no loss and change no parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from onward.graph.dtypes import numpy_type

EMPTY = "step %d: the batch is empty, it is left out"  # a log message

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, tuple[int, ...]]  # of feeds, by name


def is_empty(shapes: Shapes, inputs: Iterable[Any]) -> bool:
    """Whether all feeds with a free dimension are empty.

    Feeds of fixed sizes (a scalar, one weight for each class) do not depend on the batch.
    `inputs` have the name and shape of each feed.

    >>> from onward.graph.signature import NodeArg
    >>> inputs = NodeArg("x", "tensor(float)", ("batch", 4)), NodeArg("s", "tensor(float)", (1,))
    >>> [is_empty({"x": (rows, 4), "s": (1,)}, inputs) for rows in (0, 2)]
    [True, False]
    """
    if not any(0 in shape for shape in shapes.values()):
        return False
    free = [shapes[each.name] for each in inputs if _is_free(each.shape, shapes[each.name])]
    return bool(free) and all(0 in shape for shape in free)


def empty_results(outputs: Iterable[Any], shapes: Shapes, inputs: Iterable[Any]) -> list[Array]:
    """The outputs of a graph for an empty batch, without running it: NaN for each element.

    Engines differ on empty tensors: in one kernel, the mean of nothing is 0; another fails.
    """
    sizes = {
        symbol: size
        for each in inputs
        for symbol, size in zip(each.shape, shapes[each.name])
        if isinstance(symbol, str)
    }
    return [_result(each, sizes) for each in outputs]


def _is_free(law: Sequence[Any], shape: tuple[int, ...]) -> bool:
    """Whether an input has a dimension without a fixed size; () may be an unknown shape."""
    return any(not isinstance(size, int) or size < 0 for size in law) if law else bool(shape)


def _result(output: Any, sizes: Mapping[str, int]) -> Array:
    dtype = numpy_type(output.type)
    shape = tuple(size if isinstance(size, int) else sizes.get(size, 0) for size in output.shape)
    if dtype is None or dtype.kind != "f":
        return np.zeros(shape, object if dtype is None else dtype)
    return np.full(shape, np.nan, dtype)
