"""Tensors that a forward reads and that no module registers: of globals, containers, closures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from onward.pytorch.changing_items import ChangingItem
from onward.pytorch.fallback import CannotCapture
from onward.pytorch.tensor_aliases import memory_of
from onward.pytorch.traced_calls import TracedCalls
from onward.pytorch.translate import is_made_by_trace

Tensor = torch.Tensor


@dataclass(frozen=True)
class HiddenTensors:
    """They are inputs of a program, which is valid as long as none of them is exchanged."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    places: tuple[tuple[ChangingItem, Any], ...] = ()  # where they were found

    def are_current(self) -> bool:
        return all(item.read() is tensor for item, tensor in self.places)


def hidden_constants(
    constants: Mapping[str, Tensor], calls: TracedCalls, device: torch.device
) -> dict[str, Tensor]:
    """The constants of a trace that are hidden tensors on a device; those to train are refused."""
    found = {}
    for target, tensor in constants.items():
        memory = memory_of(tensor)
        if memory in calls.trained:
            raise CannotCapture(
                "it reads a tensor that requires gradients and that no module registers, such as "
                "of a layer in a list: use nn.ModuleList, nn.ParameterList"
            )
        if memory in calls.hidden and tensor.device == device and is_made_by_trace(target):
            found[target] = tensor
    return found


def hidden_tensors(
    inputs: Mapping[str, Tensor], hidden: Iterable[Tensor], items: Iterable[ChangingItem]
) -> HiddenTensors:
    """Hidden tensors with their places, which are among these items."""
    known = {id(tensor): tensor for tensor in hidden}
    pairs = [(item, item.read()) for item in items]
    places = tuple((item, value) for item, value in pairs if known.get(id(value)) is value)
    return HiddenTensors(dict(inputs), places)
