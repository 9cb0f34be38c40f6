"""Larger batches to learn from: join batches of few rows, open a model's fixed batch dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Feeds, Labelled
from onward.errors import OnwardError
from onward.graph.scopes import reads
from onward.passes.value_facts import ints
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_DIMENSION = "batch"
_CLOSE = 1e-3  # of the largest number: joined rows must give the outputs of single ones


def join_batches(batches: Iterable[Labelled], rows: int) -> Iterator[Labelled]:
    """Consecutive batches as one of about this many rows, where their shapes allow it."""
    waiting: list[Labelled] = []
    for batch in batches:
        if waiting and not _can_join(waiting[0], batch):
            yield _joined(waiting)
            waiting = []
        waiting.append(batch)
        if sum(_rows(each[0]) for each in waiting) >= rows:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def fixed_rows(model: ir.Model) -> int | None:
    """The first dimension that all inputs of a model fix; None if one is open."""
    sizes = {_first_size(value) for value in model.graph.inputs if not value.is_initializer()}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def open_batch(model: ir.Model, feeds: Feeds) -> ir.Model | None:
    """A copy of a model that takes any number of rows; None if it does not work.

    Sizes of the batch in constant shapes of Reshape become 0 (as the data has it). The copy is run
    on the feeds twice over and must give the model's outputs twice.
    """
    size = fixed_rows(model)
    if size is None:
        return None
    opened = model.clone()
    fed = [value for value in opened.graph.inputs if not value.is_initializer()]
    for value in fed:
        assert value.shape is not None
        value.shape = ir.Shape([_DIMENSION, *list(value.shape)[1:]])
    moved = set(fed)
    for node in opened.graph:
        if moved.isdisjoint(reads(node)):
            continue
        moved.update(node.outputs)
        if node.op_type == "Reshape" and node.inputs[0] in moved:
            _open_reshape(opened, node, size)
        for value in node.outputs:
            value.shape = None
    for value in opened.graph.outputs:
        value.shape = None
    return opened if _gives_rows(model, opened, feeds, size) else None


def _open_reshape(model: ir.Model, node: ir.Node, size: int) -> None:
    shape = ints(node.inputs[1])
    if not shape or shape[0] != size:
        return
    name = f"{node.outputs[0].name}.open_shape"
    array = np.array([0, *shape[1:]], np.int64)
    value = ir.val(
        name,
        dtype=ir.DataType.INT64,
        shape=ir.Shape(array.shape),
        const_value=ir.tensor(array, name=name),
    )
    model.graph.register_initializer(value)
    node.replace_input_with(1, value)


def _gives_rows(model: ir.Model, opened: ir.Model, feeds: Feeds, size: int) -> bool:
    options = SessionOptions(log_severity_level=4)
    twice = {name: np.concatenate([feed, feed]) for name, feed in feeds.items()}
    try:
        expected = InferenceSession(model, options).run(None, dict(feeds))
        found = InferenceSession(opened, options).run(None, twice)
    except (OnwardError, RuntimeError, ValueError):
        return False
    return all(_is_twice(y, z, size) for y, z in zip(expected, found, strict=True))


def _is_twice(y: Array, z: Array, size: int) -> bool:
    if np.ndim(y) == 0 or len(y) != size or len(z) != 2 * size or y.dtype.kind != "f":
        return False
    most = float(np.abs(y).max(initial=0.0)) * _CLOSE + 1e-6
    return bool(np.allclose(np.concatenate([y, y]), z, rtol=0, atol=most))


def _first_size(value: ir.Value) -> object:
    return value.shape[0] if value.shape is not None and len(value.shape) else None


def _rows(feeds: Feeds) -> int:
    return max((len(feed) for feed in feeds.values() if np.ndim(feed)), default=1)


def _can_join(a: Labelled, b: Labelled) -> bool:
    if set(a[0]) != set(b[0]) or (a[1] is None) != (b[1] is None):
        return False
    pairs = [(a[0][name], b[0][name]) for name in a[0]]
    return all(
        np.ndim(x) > 0 and np.shape(x)[1:] == np.shape(y)[1:] and np.ndim(x) == np.ndim(y)
        for x, y in pairs
    )


def _joined(batches: list[Labelled]) -> Labelled:
    if len(batches) == 1:
        return batches[0]
    feeds = {name: np.concatenate([each[0][name] for each in batches]) for name in batches[0][0]}
    targets = [np.atleast_1d(each[1]) for each in batches if each[1] is not None]
    return feeds, np.concatenate(targets) if targets else None
