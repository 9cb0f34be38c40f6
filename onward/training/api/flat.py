"""Flat: named tensors of one type, back to back in one buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, tuple[int, ...]]


class Flat:
    """A buffer, and each tensor as a view of it.

    >>> flat = Flat({"w": (2, 3), "b": (3,)}, "float32")
    >>> flat["b"][...] = 1
    >>> flat.buffer
    array([0., 0., 0., 0., 0., 0., 1., 1., 1.], dtype=float32)
    """

    def __init__(self, shapes: Shapes, dtype: Any) -> None:
        self.buffer: Array = np.zeros(sum(map(math.prod, shapes.values())), dtype)
        self._views: dict[str, Array] = {}
        start = 0
        for name, shape in shapes.items():
            end = start + math.prod(shape)
            self._views[name] = self.buffer[start:end].reshape(shape)
            start = end

    def __getitem__(self, name: str) -> Array:
        return self._views[name]

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def names(self) -> list[str]:
        return list(self._views)


class Tensors:
    """Named tensors of any types: those of one type share one buffer, in the order given.

    >>> tensors = Tensors({"w": ("float32", (2,)), "n": ("int64", ()), "b": ("float32", (1,))})
    >>> tensors["w"].base is tensors["b"].base
    True
    """

    def __init__(self, kinds: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        dtypes = dict.fromkeys(dtype for dtype, _ in kinds.values())
        self.flats = {
            wanted: Flat({n: s for n, (dtype, s) in kinds.items() if dtype == wanted}, wanted)
            for wanted in dtypes
        }
        self._homes = {name: self.flats[dtype] for name, (dtype, _) in kinds.items()}

    def __getitem__(self, name: str) -> Array:
        return self._homes[name][name]

    def __contains__(self, name: str) -> bool:
        return name in self._homes

    def names(self) -> list[str]:
        return list(self._homes)

    def one_buffer(self) -> Array | None:
        """The buffer, if there is one for all of them."""
        return next(iter(self.flats.values())).buffer if len(self.flats) == 1 else None
