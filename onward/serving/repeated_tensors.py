"""Read and write messages whose small part was seen before: a client's requests mostly differ only
in their tensors, and so do the answers to them.

A message is its small part, JSON or the fields of protobuf, and behind it the bytes of each tensor
with what its protocol puts in front of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from onward.serving.requests import Array, InferResponse

MOST, LONGEST = 256, 4096  # messages that are remembered, and bytes of the small part of one
_READ = frozenset("bBhHiIlLqQefd")  # type characters of numpy whose bytes are the tensor's
_WRITTEN = _READ | {"?"}  # booleans are checked when they are read
K = TypeVar("K")
V = TypeVar("V")

# of each tensor: name, type, elements, where its front and its bytes start, shape, front
_Place = tuple[str, np.dtype[Any], int, int, int, tuple[int, ...], bytes]


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Keep an entry while there is room."""
    if len(known) < MOST:
        known[key] = value


@dataclass(frozen=True, slots=True)
class TensorPlaces:
    """Where the tensors of a message are."""

    places: tuple[_Place, ...]
    size: int  # bytes of the message

    def read(self, data: bytes | memoryview) -> dict[str, Array] | None:
        """The tensors of a message of this size; None: they are divided otherwise."""
        arrays: dict[str, Array] = {}
        for name, dtype, count, start, offset, shape, front in self.places:
            if front and data[start:offset] != front:
                return None
            array = np.frombuffer(data, dtype, count, offset)
            # engines read elements at multiples of their size
            arrays[name] = (array if array.flags.aligned else array.copy()).reshape(shape)
        return arrays


def place_tensors(
    arrays: Mapping[str, Array], start: int, size: int, make_front: Callable[[int], bytes]
) -> TensorPlaces | None:
    """Where these tensors are in a message of `size` bytes; None: not all of them are in it.

    `make_front`: what is in front of the bytes of a tensor, by their number.
    """
    places = []
    for name, array in arrays.items():
        if array.dtype.char not in _READ:
            return None
        front = make_front(array.nbytes)
        offset = start + len(front)
        places.append((name, array.dtype, array.size, start, offset, array.shape, front))
        start = offset + array.nbytes
    return TensorPlaces(tuple(places), size) if start == size else None


class RepeatedAnswers:
    """Writes answers with tensors of fixed sizes: what is around them is made once.

    Answers of more than `largest` bytes are left to others, as are texts.
    """

    def __init__(
        self,
        make_head: Callable[[InferResponse], bytes],
        make_front: Callable[[int], bytes],
        largest: float = math.inf,
    ) -> None:
        self._make_head, self._make_front, self._largest = make_head, make_front, largest
        self._known: dict[tuple[Any, ...], tuple[bytes, list[bytes]]] = {}

    def write(self, response: InferResponse) -> tuple[bytes, int] | None:
        """The message of an answer, and the bytes of its small part; None: it is not one."""
        outputs = response.outputs
        key: list[Any] = [response.model, response.version]
        for name, array in outputs.items():
            key += (name, array.dtype, array.shape)
        known = self._known.get(tuple(key)) or self._learn(response, tuple(key))
        if known is None:
            return None
        head, fronts = known
        parts = [head]
        for front, array in zip(fronts, outputs.values()):
            parts += (front, array.tobytes())
        return b"".join(parts), len(head)

    def _learn(
        self, response: InferResponse, key: tuple[Any, ...]
    ) -> tuple[bytes, list[bytes]] | None:
        arrays = response.outputs.values()
        if sum([array.nbytes for array in arrays]) > self._largest:
            return None
        if any(each.dtype.char not in _WRITTEN or not each.dtype.isnative for each in arrays):
            return None
        found = self._make_head(response), [self._make_front(array.nbytes) for array in arrays]
        remember(self._known, key, found)
        return found
