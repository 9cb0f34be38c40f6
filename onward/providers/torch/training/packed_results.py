"""PackedResults: results of a recorded graph, of which the small ones are copied as one.

A copy costs the host as much for a loss as for a large tensor: for a small step that returns its
loss and a flag, about as much as launching its graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from onward.providers.torch.dtypes import Tensor

_SMALL = 64  # bytes
_ALIGNED = 8  # bytes: what a buffer has room for is read as any type


class PackedResults:
    """Tensors in lists and tuples, as a function returned them.

    Made while the function is recorded, so that a replay fills the buffer of the small ones, too.

    >>> loss, flag = torch.tensor(0.5), torch.tensor(True)
    >>> PackedResults((loss, [flag])).copy()
    (tensor(0.5000), [tensor(True)])
    """

    def __init__(self, results: Any) -> None:
        self._results = results
        self._places: dict[int, _Place] = {}  # of tensors in the buffer, by id
        self._buffer: Tensor | None = None
        found = {id(x): x for x in _tensors(results) if 0 < x.numel() * x.itemsize <= _SMALL}
        if len(found) > 1:
            parts, begin = [], 0
            for key, x in found.items():
                flat = x.contiguous().reshape(-1).view(torch.uint8)
                filled = flat.new_zeros(-len(flat) % _ALIGNED)
                parts += [flat, filled]
                strides = torch.empty(x.shape, device="meta").stride()
                self._places[key] = _Place(x.dtype, x.shape, strides, begin // x.itemsize)
                begin += len(flat) + len(filled)
            self._buffer = torch.cat(parts)

    def copy(self) -> Any:
        """The results in memory of their own."""
        packed = None if self._buffer is None else self._buffer.clone()
        return self._copied(self._results, packed)

    def _copied(self, results: Any, packed: Tensor | None) -> Any:
        if isinstance(results, Tensor):
            place = self._places.get(id(results))
            if place is None or packed is None:
                return results.clone()
            return packed.view(place.dtype).as_strided(place.shape, place.strides, place.first)
        if isinstance(results, (list, tuple)):
            return type(results)(self._copied(each, packed) for each in results)
        return results


class _Place(NamedTuple):
    """A tensor's type, shape and strides in the buffer, and its first element there."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    first: int


def _tensors(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    if isinstance(results, (list, tuple)):
        return [tensor for each in results for tensor in _tensors(each)]
    return []
