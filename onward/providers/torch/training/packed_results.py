"""PackedResults: results of a recorded graph, copied out of its memory with few kernels.

A copy costs the host as much for a loss as for a large tensor: for a small step that returns its
loss and a flag, about as much as launching its graph. So small results are copied as one, and all
others of a type together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        found = {id(x): x for x in _tensors(results)}
        small = {key: x for key, x in found.items() if 0 < x.numel() * x.itemsize <= _SMALL}
        if len(small) > 1:
            parts, begin = [], 0
            for key, x in small.items():
                flat = x.contiguous().reshape(-1).view(torch.uint8)
                filled = flat.new_empty(-len(flat) % _ALIGNED)  # no one reads it
                parts += [flat, filled]
                strides = torch.empty(x.shape, device="meta").stride()
                self._places[key] = _Place(x.dtype, x.shape, strides, begin // x.itemsize)
                begin += len(flat) + len(filled)
            self._buffer = torch.cat(parts)
        self._others: dict[torch.dtype, list[Tensor]] = {}
        for key, x in found.items():
            if key not in self._places:
                self._others.setdefault(x.dtype, []).append(x)

    def copy(self) -> Any:
        """The results in memory of their own."""
        return _unpacked(self.copy_packed())

    def copy_packed(self) -> Any:
        """The same, but small ones as a `BufferedTensor`: for those who may never read them."""
        copies: dict[int, Tensor | BufferedTensor] = {}
        if self._buffer is not None:
            packed = self._buffer.clone()
            for key, place in self._places.items():
                copies[key] = BufferedTensor(packed, place)
        for tensors in self._others.values():
            made = [torch.empty_like(tensor) for tensor in tensors]
            torch._foreach_copy_(made, tensors)
            copies |= {id(tensor): copy for tensor, copy in zip(tensors, made)}
        return _replaced(self._results, copies)


class _Place(NamedTuple):
    """A tensor's type, shape and strides in the buffer, and its first element there."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    first: int


class BufferedTensor(NamedTuple):
    """A tensor in a buffer of several. To make it takes the host as long as to copy the buffer."""

    buffer: Tensor
    place: _Place

    def tensor(self) -> Tensor:
        dtype, shape, strides, first = self.place
        return self.buffer.view(dtype).as_strided(shape, strides, first)


def unpacked(value: Any) -> Any:
    """The tensor of a `BufferedTensor`; anything else as it is."""
    return value.tensor() if type(value) is BufferedTensor else value


def stacked(values: Sequence[Tensor | BufferedTensor]) -> Tensor:
    """Scalars as a vector; those at one place of their buffers are read with few operations."""
    packed = [each for each in values if type(each) is BufferedTensor]
    if len(packed) < len(values) or len({each.place for each in packed}) != 1:
        return torch.stack([unpacked(each) for each in values])
    dtype, _, _, first = packed[0].place
    return torch.stack([each.buffer for each in packed]).view(dtype)[:, first]


def _unpacked(results: Any) -> Any:
    if type(results) in (list, tuple):
        return type(results)(_unpacked(each) for each in results)
    return unpacked(results)


def _replaced(results: Any, copies: Mapping[int, Tensor | BufferedTensor]) -> Any:
    if isinstance(results, Tensor):
        return copies[id(results)]
    if isinstance(results, (list, tuple)):
        return type(results)([_replaced(each, copies) for each in results])
    return results


def _tensors(results: Any) -> list[Tensor]:
    if isinstance(results, Tensor):
        return [results]
    if isinstance(results, (list, tuple)):
        return [tensor for each in results for tensor in _tensors(each)]
    return []
