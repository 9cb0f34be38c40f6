"""Flatten nested arguments and results into tensors, and build them again.

Lists, tuples, dictionaries, named tuples and whatever is registered with torch's pytree (such as
transformers' ModelOutput) are flattened by it; dataclasses by their fields. What is not a tensor is
kept as a constant: two calls have the same structure if they differ only in their tensors.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_TENSOR = object()  # stands for a tensor among the constants
_PYTHON = (bool, int, float, complex, str, bytes, type(None), type, enum.Enum, slice, range)
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator)
_CONSTANTS: tuple[type, ...] = (*_PYTHON, *_TORCH)


@dataclasses.dataclass(frozen=True)
class _Fields:
    """A dataclass among the leaves: the object it was, and the structure of its fields."""

    original: Any
    names: tuple[str, ...]
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # constants, _TENSOR or _Fields


@dataclasses.dataclass(frozen=True)
class Structure:
    """Nested data without its tensors."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # constants, _TENSOR or _Fields
    count: int  # of tensors

    def rebuild(self, tensors: Iterable[Any]) -> Any:
        """The nested data with these tensors."""
        return _rebuild(self.spec, self.leaves, iter(tensors))

    def key(self) -> Any:
        """A value that is equal for equal structures, hashable where the constants are."""
        return (self.spec, *map(_key, self.leaves))

    def kind(self) -> Any:
        """A value that is equal for structures that differ in the values of constants alone."""
        return (self.spec, *map(_kind, self.leaves))

    def changeable(self) -> Iterator[Any]:
        """The leaves whose contents may change without a change of `key`: such as an array."""
        return filter(_may_change, self.objects())

    def objects(self) -> Iterator[Any]:
        """The leaves that are neither tensors nor constants, those in dataclasses included."""
        return _objects(self.leaves)


def flatten(data: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors of nested data in order, and its structure.

    >>> tensors, structure = flatten({"x": torch.ones(2), "scale": 3.0, "rest": [None]})
    >>> tensors, structure.rebuild(["tensor"])
    ([tensor([1., 1.])], {'x': 'tensor', 'scale': 3.0, 'rest': [None]})
    """
    tensors: list[torch.Tensor] = []
    spec, leaves = _flatten(data, tensors)
    return tensors, Structure(spec, leaves, len(tensors))


def _flatten(data: Any, tensors: list[torch.Tensor]) -> tuple[pytree.TreeSpec, tuple[Any, ...]]:
    found, spec = pytree.tree_flatten(data)
    leaves: list[Any] = []
    for leaf in found:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            leaves.append(_TENSOR)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            names = tuple(field.name for field in dataclasses.fields(leaf))
            values = [getattr(leaf, name, None) for name in names]
            leaves.append(
                _Fields(leaf, names, *_flatten([*values, _entries(leaf, names)], tensors))
            )
        else:
            leaves.append(leaf)
    return spec, tuple(leaves)


def _entries(data: Any, names: Sequence[str]) -> dict[Any, Any] | None:
    """What a dataclass that is a dictionary, too, holds in addition to its fields."""
    if not isinstance(data, dict):
        return None
    return {key: value for key, value in data.items() if key not in names}


def _objects(leaves: Iterable[Any]) -> Iterator[Any]:
    for leaf in leaves:
        if isinstance(leaf, _Fields):
            yield from _objects(leaf.leaves)
        elif leaf is not _TENSOR and not isinstance(leaf, _CONSTANTS) and not callable(leaf):
            yield leaf


def holds_tensors(value: Any) -> bool:
    """Whether an object has attributes that are, or contain, tensors."""
    attributes = getattr(value, "__dict__", {})
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(attributes))


def _rebuild(spec: pytree.TreeSpec, leaves: Sequence[Any], tensors: Any) -> Any:
    filled = []
    for leaf in leaves:
        if leaf is _TENSOR:
            filled.append(next(tensors))
        elif isinstance(leaf, _Fields):
            *values, entries = _rebuild(leaf.spec, leaf.leaves, tensors)
            filled.append(_fill(leaf.original, dict(zip(leaf.names, values)), entries))
        else:
            filled.append(leaf)
    return pytree.tree_unflatten(filled, spec)


def _fill(original: Any, fields: Mapping[str, Any], entries: Mapping[Any, Any] | None) -> Any:
    """A dataclass like the original with other values."""
    kind: Any = type(original)
    copy = kind.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(copy, name, value)
    if entries is not None:
        for key in original:
            copy[key] = fields[key] if key in fields else entries[key]
    return copy


def _key(leaf: Any) -> Any:
    if leaf is _TENSOR:
        return "tensor"
    if isinstance(leaf, _Fields):
        return (type(leaf.original), leaf.spec, *map(_key, leaf.leaves))
    if isinstance(leaf, (float, complex)):
        return (type(leaf), repr(leaf))  # nan differs from itself, and 0.0 equals -0.0
    if isinstance(leaf, slice):  # has no hash before Python 3.12
        return (slice, *map(_key, (leaf.start, leaf.stop, leaf.step)))
    if not callable(leaf) and _may_change(leaf):
        return (type(leaf), "object")
    return (type(leaf), leaf)  # 1, 1.0 and True are different constants


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, _Fields):
        return (type(leaf.original), leaf.spec, *map(_kind, leaf.leaves))
    return "tensor" if leaf is _TENSOR else type(leaf)


def _may_change(leaf: Any) -> bool:
    """Whether an object's hash does not tell its contents: it has none, or is that of identity."""
    if isinstance(leaf, _CONSTANTS):
        return False
    try:
        hash(leaf)
    except TypeError:
        return True
    kind: Any = type(leaf)
    return kind.__hash__ is object.__hash__


# -- names -------------------------------------------------------------------------------------


def tensor_names(data: Any, first: str = "") -> list[str]:
    """A name for each tensor of nested data: the path that leads to it.

    >>> tensor_names({"x": torch.ones(1), "more": [torch.ones(1), 3]})
    ['x', 'more_0']
    """
    found, _ = pytree.tree_flatten_with_path(data)
    names: list[str] = []
    for path, leaf in found:
        name = "_".join([first] * bool(first) + [_step(step) for step in path])
        if isinstance(leaf, torch.Tensor):
            names.append(name)
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            fields = {f.name: getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)}
            names.extend(tensor_names({**fields, **(_entries(leaf, list(fields)) or {})}, name))
    return names


def _step(step: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(step, attribute):
            return str(getattr(step, attribute))
    return str(step)


def name_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments by the names of a function's parameters, in the order of `(args, kwargs)`."""
    try:
        positional = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        positional = []
    names = [p.name for p in positional[: len(args)]]
    names += [f"input_{i}" for i in range(len(names), len(args))]
    return {**dict(zip(names, args)), **kwargs}
