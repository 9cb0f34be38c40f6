"""Make the fixed batch of a model dynamic, and fix it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Array, Feeds
from onward.errors import OnwardError, UnsupportedModel
from onward.graph.shapes.infer import infer_shapes
from onward.passes.training_mode import free_name
from onward.passes.value_facts import ints
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

_NAME = "batch"
_CLOSE = 1e-3  # of the largest number: joined rows must give the outputs of single ones


def input_axes(model: ir.Model, output: ir.Value) -> dict[str, int]:
    """The batch axis of each input that has one: the dynamic dimension that the output shares."""
    shapes = {str(value.name): value.shape for value in model.graph.inputs}
    wanted = _symbol(output.shape[0]) if output.shape is not None and len(output.shape) else None
    found: dict[str, int] = {}
    if wanted is not None:
        for name, shape in shapes.items():
            places = [i for i, size in enumerate(shape or ()) if _symbol(size) == wanted]
            found |= {name: places[0]} if places else {}
    if found:
        return found
    return {
        name: 0
        for name, shape in shapes.items()
        if shape is not None and len(shape) and not isinstance(shape[0], int)
    }


def _symbol(size: Any) -> str | None:
    return None if isinstance(size, int) else size.value


def check_axes(axes: dict[str, int]) -> None:
    """Refuse a model without a batch."""
    if not axes:
        raise UnsupportedModel(
            "no input of the model has a batch axis\nexport it with a dynamic first dimension"
        )


def fixed_batch(model: ir.Model) -> int | None:
    """The first dimension that all inputs of a model fix; None if one is dynamic."""
    sizes = {_first_size(value) for value in _fed(model)}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def dynamic_batch_copy(model: ir.Model, feeds: Feeds) -> ir.Model | None:
    """A copy of a model that takes any number of rows; None if it does not work.

    The copy is run on the feeds twice over and must give the model's outputs twice.
    """
    size = fixed_batch(model)
    if size is None:
        return None
    copy = infer_shapes(model.clone())
    make_fixed_batch_dynamic(copy)
    return copy if _gives_rows(model, copy, feeds, size) else None


def make_fixed_batch_dynamic(model: ir.Model) -> int | None:
    """Make the batch of a model dynamic, in place; return the size that it had, if fixed.

    The shapes of the model are known. The first dimension of the first input counts as the batch.
    Reshapes to fixed sizes keep what they know of the other axes.
    """
    first = next((s for value in _fed(model) if (s := _first_size(value)) is not None), None)
    if not isinstance(first, int):
        _make_reshapes_dynamic(model, None)
        return None
    _make_reshapes_dynamic(model, first)
    for value in _fed(model):
        if _first_size(value) == first:
            assert value.shape is not None
            value.shape = ir.Shape([_NAME, *list(value.shape)[1:]])
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    infer_shapes(model)
    return first


def _make_reshapes_dynamic(model: ir.Model, batch: int | None) -> None:
    """Reshape(x, [8, -1]) and Reshape(x, [n, -1]) become Reshape(x, [-1, 1280]).

    With 0 rows, -1 can only be the batch itself. If another size is unknown, too,
    Reshape(x, [8, -1]) becomes Reshape(x, [0, -1]): the batch is x's.
    """
    for node in model.graph:
        if node.op_type != "Reshape" or node.domain:
            continue
        sizes = [size if isinstance(size, int) else -1 for size in node.outputs[0].shape or ()]
        if batch is not None and sizes[:1] == [batch]:
            sizes[0] = -1
        if sizes.count(-1) == 1 and 0 not in sizes:
            _set_shape(model, node, sizes)
        elif (shape := ints(node.inputs[1])) and shape[0] == batch:
            _set_shape(model, node, [0, *shape[1:]])


def make_observed_reshapes_dynamic(
    model: ir.Model, shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    """The same from the shapes of two runs, where no size but the batch is dynamic."""
    for node in model.graph:
        two, three = shapes.get(str(node.outputs[0].name), ((), ()))
        sizes = [a if a == b else -1 for a, b in zip(two, three)]
        if sizes.count(-1) == 1 and 0 not in sizes:
            _set_shape(model, node, sizes)


def _set_shape(model: ir.Model, node: ir.Node, sizes: list[int]) -> None:
    known = node.inputs[1].const_value if node.inputs[1] is not None else None
    if known is not None and known.numpy().tolist() == sizes:
        return
    name = free_name(f"{node.outputs[0].name}_dynamic_shape", set(model.graph.initializers))
    tensor = ir.tensor(np.array(sizes, np.int64), name=name)
    value = ir.val(name, dtype=tensor.dtype, shape=ir.Shape([len(sizes)]), const_value=tensor)
    model.graph.register_initializer(value)
    node.replace_input_with(1, value)


def restore_fixed_batch(model: ir.Model, batch: int | None, axes: dict[str, int]) -> None:
    """Declare the batch again as it was fixed, on inputs and outputs."""
    if batch is None:
        return
    for value in (*model.graph.inputs, *model.graph.outputs):
        has_axes = value.shape is not None and len(value.shape)
        if has_axes and (value.name in axes or value in model.graph.outputs):
            assert value.shape is not None
            value.shape = ir.Shape([batch, *list(value.shape)[1:]])


def _gives_rows(model: ir.Model, copy: ir.Model, feeds: Feeds, size: int) -> bool:
    options = SessionOptions(log_severity_level=4)
    twice = {name: np.concatenate([feed, feed]) for name, feed in feeds.items()}
    try:
        expected = InferenceSession(model, options).run(None, dict(feeds))
        found = InferenceSession(copy, options).run(None, twice)
    except (OnwardError, RuntimeError, ValueError):
        return False
    return all(_is_twice(y, z, size) for y, z in zip(expected, found, strict=True))


def _is_twice(y: Array, z: Array, size: int) -> bool:
    if np.ndim(y) == 0 or len(y) != size or len(z) != 2 * size or y.dtype.kind != "f":
        return False
    most = float(np.abs(y).max(initial=0.0)) * _CLOSE + 1e-6
    return bool(np.allclose(np.concatenate([y, y]), z, rtol=0, atol=most))


def _fed(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _first_size(value: ir.Value) -> object:
    return value.shape[0] if value.shape is not None and len(value.shape) else None
