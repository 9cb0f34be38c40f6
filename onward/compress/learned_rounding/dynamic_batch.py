"""Make the fixed batch dimension of a model dynamic, so that it can learn from larger batches."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Feeds
from onward.errors import OnwardError
from onward.graph.scopes import reads
from onward.passes.value_facts import ints
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_DIMENSION = "batch"
_CLOSE = 1e-3  # of the largest number: joined rows must give the outputs of single ones


def fixed_rows(model: ir.Model) -> int | None:
    """The first dimension that all inputs of a model fix; None if one is dynamic."""
    sizes = {_first_size(value) for value in model.graph.inputs if not value.is_initializer()}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def make_batch_dynamic(model: ir.Model, feeds: Feeds) -> ir.Model | None:
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
