"""Find the batch axes of a model's inputs, and make a fixed batch dynamic."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import UnsupportedModel
from onward.graph.shapes.infer import infer_shapes
from onward.passes.training_mode import free_name

_NAME = "batch"


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


def make_fixed_batch_dynamic(model: ir.Model) -> int | None:
    """Make the batch of a prepared model dynamic, in place; the size that it had, if fixed.

    The first dimension of the first input counts as the batch. Reshapes to fixed sizes keep what
    they know of the other axes.
    """
    shapes = [value.shape for value in model.graph.inputs if value.shape is not None]
    first = next((shape[0] for shape in shapes if len(shape)), None)
    if not isinstance(first, int):
        _open_reshapes(model, None)
        return None
    _open_reshapes(model, first)
    for value in model.graph.inputs:
        if value.shape is not None and len(value.shape) and value.shape[0] == first:
            value.shape = ir.Shape([_NAME, *list(value.shape)[1:]])
    for node in model.graph:
        for value in node.outputs:
            value.shape = None
    infer_shapes(model)
    return first


def _open_reshapes(model: ir.Model, batch: int | None) -> None:
    """Reshape(x, [8, -1]) and Reshape(x, [n, -1]) become Reshape(x, [-1, 1280]).

    With 0 rows, -1 can only be the batch itself.
    """
    for node in model.graph:
        made = node.outputs[0].shape if node.op_type == "Reshape" and not node.domain else None
        if made is None or not len(made):
            continue
        sizes: list[Any] = [size if isinstance(size, int) else -1 for size in made]
        if batch is not None and sizes[0] == batch and -1 not in sizes:
            sizes[0] = -1
        if sizes.count(-1) == 1 and 0 not in sizes:
            _set_shape(model, node, sizes)


def make_observed_reshapes_dynamic(
    model: ir.Model, shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    """The same from the shapes of two runs, where no size but the batch is dynamic."""
    for node in model.graph:
        two, three = shapes.get(str(node.outputs[0].name), ((), ()))
        sizes = [a if a == b else -1 for a, b in zip(two, three)]
        if sizes.count(-1) == 1 and 0 not in sizes:
            _set_shape(model, node, sizes)


def _set_shape(model: ir.Model, node: ir.Node, sizes: list[Any]) -> None:
    known = node.inputs[1].const_value if node.inputs[1] is not None else None
    if known is not None and known.numpy().tolist() == sizes:
        return
    name = free_name(f"{node.outputs[0].name}_open_shape", set(model.graph.initializers))
    tensor = ir.tensor(np.array(sizes, np.int64), name=name)
    value = ir.val(name, dtype=tensor.dtype, shape=ir.Shape([len(sizes)]), const_value=tensor)
    model.graph.register_initializer(value)
    node.replace_input_with(1, value)


def restore_fixed_batch(model: ir.Model, batch: int | None, axes: dict[str, int]) -> None:
    """Declare the batch again as it was fixed, on inputs and outputs."""
    if batch is None:
        return
    for value in (*model.graph.inputs, *model.graph.outputs):
        is_dynamic = value.shape is not None and len(value.shape)
        if is_dynamic and (value.name in axes or value in model.graph.outputs):
            assert value.shape is not None
            value.shape = ir.Shape([batch, *list(value.shape)[1:]])


def check_axes(axes: dict[str, int]) -> None:
    """Refuse a model without a batch."""
    if not axes:
        raise UnsupportedModel(
            "no input of the model has a batch axis\nexport it with a dynamic first dimension"
        )
