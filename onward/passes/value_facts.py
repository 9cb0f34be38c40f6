"""Facts about a value: its constant, its shape, its producer and its readers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
Dim = int | str | None  # a size, a name, or unknown

_LARGEST = 1 << 16  # elements of a constant that a rule may read


def constant(value: ir.Value | None, largest: int = _LARGEST) -> Array | None:
    """The value's constant as a numpy array; None if a feed can change it, or it is too large."""
    if not is_constant(value):
        return None
    assert value is not None and value.const_value is not None
    held = getattr(value.const_value, "raw", None)  # an array, unless the data is in a file
    size = held.size if isinstance(held, np.ndarray) else value.const_value.size
    return None if size > largest else np.asarray(value.const_value.numpy())


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is the same in every run: an initializer that is also an input is not."""
    return value is not None and value.const_value is not None and not value.is_graph_input()


def scalar(value: ir.Value | None) -> float | None:
    """A constant of one element, as a number."""
    array = constant(value, 1)
    if array is None or array.size != 1 or array.dtype.kind in "OSUc":
        return None
    return float(array.reshape(()).astype(np.float64))


def is_scalar(value: ir.Value | None, number: float, tolerance: float = 1e-5) -> bool:
    """Whether the value is a constant of one element that equals `number`."""
    found = scalar(value)
    return found is not None and abs(found - number) <= tolerance * max(abs(number), 1e-30)


def ints(value: ir.Value | None) -> list[int] | None:
    """A constant of integers, flat."""
    array = constant(value)
    if array is None or array.dtype.kind not in "iu":
        return None
    return [int(item) for item in array.reshape(-1)]


def dims(value: ir.Value | None) -> tuple[Dim, ...] | None:
    """The value's dimensions, each a size, a name or unknown; None if its rank is not known."""
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def static(value: ir.Value | None) -> tuple[int, ...] | None:
    """The value's shape, if every dimension is a number."""
    shape = dims(value)
    if shape is None or not all(isinstance(dim, int) for dim in shape):
        return None
    return shape  # type: ignore[return-value]


def rank(value: ir.Value | None) -> int | None:
    shape = dims(value)
    return None if shape is None else len(shape)


def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether both values surely have the same shape."""
    ours, theirs = dims(a), dims(b)
    return ours is not None and ours == theirs and None not in ours


def fits_within(small: ir.Value | None, large: ir.Value | None) -> bool:
    """Whether `small` broadcasts to `large` and leaves its shape as it is."""
    inner, outer = dims(small), dims(large)
    if inner is None or outer is None or len(inner) > len(outer):
        return False
    tail = outer[len(outer) - len(inner) :]
    return all(a == 1 or (a == b and a is not None) for a, b in zip(inner, tail, strict=True))


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that makes the value, if it is one of these operators (default domain)."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in operators:
        return None
    return node


def operators(names: str) -> tuple[str, ...]:
    """Operator names from a text, separated by blanks."""
    return tuple(names.split())


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """The value of an attribute, or a default."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """An input by position; a missing optional one is None."""
    return node.inputs[index] if index < len(node.inputs) else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Of a node with two inputs, the one that is not `value`."""
    first, second = node.inputs
    return second if first is value else first


def only_inside(nodes: Collection[ir.Node], root: ir.Node) -> bool:
    """Whether only `nodes` and `root` read what `nodes` make: they can be removed together."""
    inside = {*nodes, root}
    made = [value for node in nodes if node is not root for value in node.outputs]
    return all(
        not value.is_graph_output() and all(user in inside for user, _ in value.uses())
        for value in made
    )


def reads_once(value: ir.Value) -> bool:
    """Whether exactly one node input reads the value and the graph does not return it."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()


def like(number: float | Array, value: ir.Value) -> Array:
    """A number (or numbers) as a numpy array of the value's type."""
    assert value.dtype is not None
    return np.asarray(number).astype(value.dtype.numpy())


def in_float32(array: Array) -> Array:
    """Half precision as float32, other types unchanged."""
    narrow = array.dtype in (np.float16, ml_dtypes.bfloat16)
    return array.astype(np.float32) if narrow else array
