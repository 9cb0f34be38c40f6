"""Tensors that share memory: a change of one is a change of the other, which no graph knows."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def shares_memory(changed: Iterable[torch.Tensor], tensors: Iterable[torch.Tensor]) -> bool:
    """Whether one of the changed tensors shares memory with another one of the tensors."""
    places = [memory_of(tensor) for tensor in tensors]
    return any(place and places.count(place) > 1 for place in map(memory_of, changed))


def memory_of(tensor: torch.Tensor) -> int:
    """Where the memory begins that a tensor is in; 0 if it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
