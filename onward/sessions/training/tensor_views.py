"""Read-only views of a session's tensors by name, and the check of new values for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.programs.arrays import to_array
from onward.programs.program import Array, Spec
from onward.providers.provider import Store


class CurrentStore:
    """The store of a session's engine; views follow when the session moves to another engine."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def view(self, names: Mapping[str, str]) -> TensorView:
        """Tensors by other names than the store's: name -> its name in the store."""
        return TensorView(self, names)


class TensorView(Mapping[str, Array]):
    """Tensors of a session by name, read-only, read on access."""

    def __init__(self, current: CurrentStore, names: Mapping[str, str]) -> None:
        self._current, self._names = current, names

    def __getitem__(self, name: str) -> Array:
        array: Array = self._current.store.read(self._names[name])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"TensorView({', '.join(self._names)})"


def check_tensors(tensors: Mapping[str, Any], known: Mapping[str, Spec]) -> dict[str, Array]:
    """Tensors as arrays, each of the shape, and castable to the type, that its name has."""
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise OptionError(
            f"parameters must be a dictionary of arrays, not {kind}\ngive {{name: ...}}"
        )
    arrays = {}
    for name, tensor in tensors.items():
        if name not in known:
            raise OptionError(f"there is no parameter {name!r}\n{suggest_names(name, known)}")
        dtype, shape = known[name]
        array = arrays[name] = to_array(tensor, f"parameter {name!r}", OptionError)
        if array.shape != shape:
            raise OptionError(
                f"parameter {name!r} has shape {shape}, not {array.shape}\n"
                "give an array of that shape"
            )
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise OptionError(
                f"parameter {name!r} is of {dtype}, not of {array.dtype}\n"
                f"give an array that can be cast to {dtype}"
            )
    return arrays
