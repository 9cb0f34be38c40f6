"""The state that a program is valid for: types, gradients, tied tensors, autocast."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor
_PLAIN = {torch.Tensor, nn.Parameter, nn.Buffer}
_kind = attrgetter("dtype", "device", "requires_grad")
_shape = attrgetter("shape")


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """Whether all are tensors with memory of their own: no DTensors, no fake tensors."""
    return _PLAIN.issuperset(map(type, tensors))


def are_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether some are DTensors: FSDP2 gathers them when the submodule of theirs is called."""
    return any(hasattr(tensor, "_local_tensor") for tensor in tensors)


def trace_state(tensors: Collection[Tensor], call: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a trace depends on, in addition to the structure of the arguments, modes and sizes.

    Of the module's tensors, that is also their shapes, and which of them are the same.
    """
    held = [*tensors, *call]
    kinds = tuple(map(_kind, held))
    shapes = tuple(map(_shape, tensors))
    ties = tuple(map(dict[int, int]().setdefault, map(id, tensors), count()))
    ranks = tuple([tensor.ndim for tensor in call])
    device = held[0].device.type if held else "cpu"
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    return kinds, shapes, ties, ranks, torch.is_grad_enabled(), autocast
