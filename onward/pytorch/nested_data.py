"""Nested inputs and outputs of modules as a list of tensors and a schema, and back."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onward.errors import OptionTypeError


@dataclasses.dataclass(repr=False)
class TensorStub:
    """The place of a tensor in a schema: its index in the list, and what kind of tensor it is."""

    tensor_idx: int
    name: str | None = None
    dtype: str | None = None
    shape: Any = None
    shape_dims: int | None = None  # the rank

    def __repr__(self) -> str:
        known = {name: value for name, value in vars(self).items() if value is not None}
        return f"_TensorStub({','.join(f'{name}={value}' for name, value in known.items())})"


class PrimitiveType:
    """Python's numbers and truth values, which may be tensors of rank 0."""

    @staticmethod
    def is_primitive_type(value: object) -> bool:
        """Whether a value is an int, a bool or a float, and not of a subclass.

        >>> PrimitiveType.is_primitive_type(1), PrimitiveType.is_primitive_type("1")
        (True, False)
        """
        return type(value) in (int, bool, float)

    @staticmethod
    def get_tensor(value: float, device: torch.device | None) -> Tensor:
        """A tensor of rank 0 with this value."""
        return torch.tensor(value, device=device)

    @staticmethod
    def get_primitive_dtype(value: float) -> str:
        """The type's name; with the value if it is a bool, which may change what a module does.

        >>> PrimitiveType.get_primitive_dtype(True)
        "<class 'bool'>_True"
        """
        return f"{type(value)}_{value}" if isinstance(value, bool) else str(type(value))


def extract_data_and_schema(
    data: Any, constant_as_tensor: bool = False, device: torch.device | None = None
) -> tuple[list[Tensor], Any]:
    """All tensors of nested data, and the data with a stub in the place of each tensor.

    Data are nested sequences, mappings (in the order of their keys) and dataclasses of tensors,
    numbers, strings, numpy arrays and None. With `constant_as_tensor`, Python's numbers become
    tensors on the device; otherwise they stay in the schema.

    >>> tensors, schema = extract_data_and_schema({"x": torch.ones(2), "y": None})
    >>> schema
    {'x': _TensorStub(tensor_idx=0,name=x,dtype=torch.float32,shape_dims=1), 'y': None}
    >>> unflatten_data_using_schema(tensors, schema)
    {'x': tensor([1., 1.]), 'y': None}
    """
    tensors: list[Tensor] = []

    def stub_of(tensor: Tensor, dtype: str, name: str) -> TensorStub:
        tensors.append(tensor)
        return TensorStub(len(tensors) - 1, name, dtype, shape_dims=tensor.dim())

    def replace(leaf: Any, name: str) -> Any:
        if isinstance(leaf, Tensor):
            return stub_of(leaf, str(leaf.dtype), name)
        if leaf is None:
            return None
        if not isinstance(leaf, (str, np.ndarray)) and not PrimitiveType.is_primitive_type(leaf):
            raise OptionTypeError(
                f"Unsupported flatten data type: {type(leaf)} (at {name or 'the top'})\n"
                "give tensors, numbers, strings or None in sequences, mappings or dataclasses"
            )
        warnings.warn(
            f"an input of {type(leaf)} may be taken for a constant; if it never changes, give it "
            "to the module's constructor",
            UserWarning,
            stacklevel=4,
        )
        if constant_as_tensor and PrimitiveType.is_primitive_type(leaf):
            dtype = PrimitiveType.get_primitive_dtype(leaf)
            return stub_of(PrimitiveType.get_tensor(leaf, device), dtype, name)
        return leaf

    return tensors, map_leaves(replace, data)


def unflatten_data_using_schema(data: Sequence[Tensor], schema: Any) -> Any:
    """Nested data from a list of tensors and a schema of `extract_data_and_schema`."""

    def restore(leaf: Any, name: str) -> Any:
        if not isinstance(leaf, TensorStub):
            return leaf
        found = data[leaf.tensor_idx]
        if not isinstance(found, Tensor):
            raise OptionTypeError(f"Unsupported unflatten data type: {type(found)}\ngive tensors")
        return found

    return map_leaves(restore, schema)


def map_tensors(function: Callable[[int, Tensor], Tensor], data: Any) -> Any:
    """Nested data with each tensor replaced by function(index, tensor); all else stays."""
    count = 0

    def replace(leaf: Any, name: str) -> Any:
        nonlocal count
        if not isinstance(leaf, Tensor):
            return leaf
        count += 1
        return function(count - 1, leaf)

    return map_leaves(replace, data)


def map_leaves(function: Callable[[Any, str], Any], data: Any, name: str = "") -> Any:
    """Nested data with each leaf replaced by function(leaf, its path joined by '_')."""

    def below(key: object, value: Any) -> Any:
        return map_leaves(function, value, f"{name}_{key}" if name else str(key))

    if isinstance(data, (str, Tensor, np.ndarray, TensorStub)):
        return function(data, name)
    if isinstance(data, Sequence):
        items = [below(i, value) for i, value in enumerate(data)]
        kind: Any = type(data)
        return kind._make(items) if hasattr(kind, "_make") else kind(items)  # a named tuple
    if isinstance(data, Mapping):
        found = {key: below(key, data[key]) for key in _sorted_keys(data)}
        if not isinstance(data, MutableMapping):
            return type(data)(found)  # type: ignore[call-arg]
        same = copy.copy(data)  # such as a ModelOutput, whose constructor may have checks
        for key in data:
            same[key] = found[key]
        return same
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        twin = copy.copy(data)
        for field in dataclasses.fields(data):
            if hasattr(data, field.name):
                value = below(field.name, getattr(data, field.name))
                object.__setattr__(twin, field.name, value)  # a frozen one too
        return twin
    return function(data, name)


def _sorted_keys(data: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(data)
    except TypeError:  # of different types
        return sorted(data, key=str)
