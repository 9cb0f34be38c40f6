"""The protocol of losses, and functions that losses share: outputs, targets, reductions.

A loss is a frozen dataclass. `loss.build(op, values)` adds it to the end of a model: `op` is
`onward.graph.graph_ops.extend(model)`, `values` are the model's values by name, its outputs first.
A target is a value of the model with that name, or a new input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.dtypes import FLOATS, HALVES
from onward.graph.graph_ops import GraphOps
from onward.message_text import format_sizes, suggest_names
from onward.passes.zip_maps import zipped_tensor
from onward.settings import Check, check_fields, choice, nonempty_name, optional, setting_error

Values: TypeAlias = Mapping[str, ir.Value]
Sizes: TypeAlias = list[int | str | None]

REDUCTIONS = ("mean", "sum", "none")
_OLDEST_OPSET = 18  # since then, the axes of reductions are inputs


class Loss(Protocol):
    """A graph that is added to a model; training minimises its value."""

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        """Add the loss: a scalar, or one value per element if reduction is "none"."""
        ...


# -- outputs of the model --------------------------------------------------------------------------


def read(op: GraphOps, loss: Loss, values: Values, name: str | None) -> ir.Value:
    """A float value of the model (None: the first output), 16-bit floats as float32."""
    return widened(op, checked_float(loss, read_as_is(op, loss, values, name)))


def read_as_is(op: GraphOps, loss: Loss, values: Values, name: str | None) -> ir.Value:
    """A value of the model; None: the first output."""
    if op.opset() < _OLDEST_OPSET:
        raise OptionError(
            f"{_who(loss)} needs opset {_OLDEST_OPSET} or newer, "
            f"the model has {op.opset()}\n"
            "upgrade it first: onward.passes.upgrade.upgrade_opset(model)"
        )
    value = find(op, values, name) if name is not None else next(iter(values.values()), None)
    if value is None:
        asked = "the first output" if name is None else repr(name)
        raise OptionError(
            f"{_who(loss)} reads {asked}, which the model does not have\n"
            f"{suggest_names(name or '', values, 'its values are')}"
        )
    return value


def checked_float(loss: Loss, value: ir.Value) -> ir.Value:
    """The value; an error unless it is a float tensor of known rank."""
    tensor = zipped_tensor(value)
    if tensor is not None:
        raise OptionError(
            f"{_who(loss)} reads {value.name!r}, which is a list of maps (ZipMap)\n"
            f"name the tensor that it is made from: {tensor.name!r}"
        )
    if value.dtype not in FLOATS:
        kind = value.dtype.name if value.dtype is not None else "of no known type"
        raise OptionError(
            f"{_who(loss)} reads {value.name!r}, which is {kind}: a loss needs float values\n"
            "name another output, or cast it in the model"
        )
    if value.shape is None:
        raise OptionError(
            f"{_who(loss)} reads {value.name!r}, whose rank is not known\n"
            "give the model's inputs shapes, so that it can be inferred"
        )
    return value


def widened(op: GraphOps, x: ir.Value) -> ir.Value:
    """16-bit floats as float32: sums of squares and loss scales overflow in 16 bits."""
    return op.Cast(x, to=int(ir.DataType.FLOAT)) if x.dtype in HALVES else x


def check_rank(loss: Loss, x: ir.Value, least: int, law: str, most: int | None = None) -> None:
    """Check the number of axes; `law` describes it in the error."""
    count = len(sizes_of(x))
    if count < least or (most is not None and count > most):
        raise OptionError(f"{_who(loss)} needs {law}; {x.name!r} has shape {shown(x)}")


# -- targets ---------------------------------------------------------------------------------------


def target_like(op: GraphOps, loss: Loss, x: ir.Value, values: Values, name: str) -> ir.Value:
    """The target with x's type and shape: a value of the model, or a new input."""
    value = target(op, loss, values, name, x.dtype, sizes_of(x))
    return op.cast_like(value, x)


def target(
    op: GraphOps,
    loss: Loss,
    values: Values,
    name: str,
    dtype: Any,
    sizes: Sequence[int | str | None],
) -> ir.Value:
    """The value of that name, which must have these sizes, or a new input of this type."""
    known = find(op, values, name)
    if known is None:
        return op.input(name, dtype, sizes)
    found = None if known.shape is None else sizes_of(known)
    if found is not None and not agree(found, list(sizes)):
        raise OptionError(
            f"{_who(loss)} compares with {name!r}, which should have shape [{format_sizes(sizes)}] "
            f"and has {shown(known)}\ngive this loss another target: target='...'"
        )
    return known


def integers(op: GraphOps, loss: Loss, value: ir.Value) -> ir.Value:
    """Labels and lengths as int64."""
    if value.dtype is None or not value.dtype.is_integer():
        kind = value.dtype.name if value.dtype is not None else "of no known type"
        raise OptionError(f"{_who(loss)} reads {value.name!r}, which is {kind}: it needs integers")
    return value if value.dtype == ir.DataType.INT64 else op.Cast(value, to=int(ir.DataType.INT64))


def find(op: GraphOps, values: Values, name: str) -> ir.Value | None:
    """A value of the model, or an input that another loss has added."""
    made = (value for value in op.graph.inputs if value.name == name)
    return values[name] if name in values else next(made, None)


def sizes_of(x: ir.Value) -> Sizes:
    """The sizes of x for `op.input`: numbers, names, None."""
    assert x.shape is not None
    return [size if isinstance(size, int) else size.value for size in x.shape]


def agree(a: Sizes, b: Sizes) -> bool:
    """Whether two shapes can be equal: a name may be any size."""
    pairs = zip(a, b)
    clash = any(isinstance(m, int) and isinstance(n, int) and m != n for m, n in pairs)
    return len(a) == len(b) and not clash


# -- reduction -------------------------------------------------------------------------------------


def reduced(op: GraphOps, each: ir.Value, reduction: str) -> ir.Value:
    """The mean of all elements, their sum, or the elements."""
    if reduction == "none":
        return each
    return (
        op.ReduceMean(each, keepdims=0) if reduction == "mean" else op.ReduceSum(each, keepdims=0)
    )


def scalar(op: GraphOps, loss: Loss, value: ir.Value) -> ir.Value:
    """The value as a scalar; an error unless it is one float."""
    checked_float(loss, value)
    sizes = sizes_of(value)
    if any(size != 1 for size in sizes):
        raise OptionError(
            f"{_who(loss)} returns {value.name!r} of shape {shown(value)}: "
            "a loss must be one number\n"
            "reduce it to its mean or its sum first"
        )
    return op.Reshape(value, np.zeros(0, np.int64)) if sizes else value


# -- fields ----------------------------------------------------------------------------------------


def check_loss(loss: object, reductions: Sequence[str] = REDUCTIONS, **checks: Check) -> None:
    """Check the fields that most losses have, and those with the given checks."""
    shared = {"output": optional(nonempty_name), "target": nonempty_name}
    shared["reduction"] = choice(*reductions)
    shared = {name: check for name, check in shared.items() if hasattr(loss, name)}
    check_fields(loss, **shared, **checks)


def nested_numbers(name: str, value: Any) -> Any:
    """An array as nested tuples, so that a loss can be compared, printed and written to a file."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise setting_error(name, "an array of numbers", value) from None
    if not np.isfinite(array).all():
        raise setting_error(name, "an array of finite numbers", value)
    return _frozen(array.tolist())


def _frozen(nested: Any) -> Any:
    return tuple(_frozen(each) for each in nested) if isinstance(nested, list) else nested


def _who(loss: Loss) -> str:
    return type(loss).__name__


def shown(x: ir.Value) -> str:
    """A shape as text for messages."""
    return f"[{format_sizes(sizes_of(x))}]"
