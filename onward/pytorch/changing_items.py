"""Attributes and items of containers that a forward changes, and what a trace read of them.

self.aux_loss = loss     in each call: one more result of the program, set after it has run
self.is_ready = True     once: the first call runs in PyTorch, the next one is captured
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from onward.pytorch.call_structure import flatten
from onward.pytorch.fallback import CannotCapture

CONSTANTS = (bool, int, float, complex, str, bytes)
SEQUENCES = (list, deque, set)
ABSENT = object()
ItemKey = tuple[int, Any]


class ChangingItem:
    """An attribute, an item of a dictionary or of a list, or all items of a list (None)."""

    def __init__(self, held: Any, name: Any, where: str) -> None:
        self.held, self.name, self.where = held, name, where

    @property
    def key(self) -> ItemKey:
        """What it is known by; items are kept, so that no other object has the same number."""
        return (id(self.held), self.name)

    def read(self) -> Any:
        if isinstance(self.held, SEQUENCES):
            values = tuple(self.held)
            return values if self.name is None else dict(enumerate(values)).get(self.name, ABSENT)
        items = self.held if isinstance(self.held, dict) else vars(self.held)
        return items.get(self.name, ABSENT)

    def write(self, value: Any) -> None:
        write_item(self.held, self.name, value)

    @property
    def is_input(self) -> bool:
        """Whether programs read it in each call: it is a tensor, and an attribute of a module."""
        return isinstance(self.held, nn.Module) and isinstance(self.read(), torch.Tensor)


ChangingItems = dict[ItemKey, ChangingItem]


class Initializes(CannotCapture):
    """A forward changes these items; the next call may find them as they will stay."""

    def __init__(self, text: str, items: Sequence[ChangingItem] = ()) -> None:
        super().__init__(text)
        self.items = items


class TracedItems:
    """What a trace took of the items that calls change: their constants, the kinds of tensors."""

    def __init__(
        self, changing: ChangingItems | None = None, read: Collection[ItemKey] = ()
    ) -> None:
        changing = changing or {}
        self._states = [(item, _state(item.read(), key in read)) for key, item in changing.items()]
        self._read = frozenset(read)
        for key in read:
            if not changing[key].is_input:
                where = changing[key].where
                raise CannotCapture(f"it reads {where}, which calls change: make it a buffer")

    def are_current(self, changing: ChangingItems) -> bool:
        """Whether the items are as they were, and no others are known to change."""
        return len(changing) == len(self._states) and all(
            _state(item.read(), item.key in self._read) == state for item, state in self._states
        )


def tensor_kind(value: Any) -> tuple[Any, ...] | None:
    """What a program depends on of a tensor that it reads in each call; None: it is no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    return (value.shape, value.dtype, value.device, value.requires_grad)


def tensors_of_items(changing: ChangingItems) -> dict[int, ItemKey]:
    """The tensors that the items are or contain, by identity."""
    return {id(tensor): key for key, item in changing.items() for tensor in flatten(item.read())[0]}


def is_made_of_tensors(value: Any) -> bool:
    """Whether a value is a tensor, or some in containers, in dataclasses and with constants."""
    tensors, structure = flatten(value)
    return bool(tensors) and not any(True for _ in structure.objects())


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal constants."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, CONSTANTS):
        return bool(one == other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return False


def write_item(held: Any, name: Any, value: Any) -> None:
    """Set or delete an item of a dictionary, or an attribute."""
    if isinstance(held, type):
        if value is ABSENT:
            delattr(held, name)
        else:
            setattr(held, name, value)
        return
    items = held if isinstance(held, dict) else vars(held)
    if value is ABSENT:
        items.pop(name, None)
    else:
        items[name] = value


def _state(value: Any, is_read: bool) -> Any:
    """What a trace may depend on, to be compared; of tensors that it does not read, their type."""
    if isinstance(value, torch.Tensor):
        return (type(value), tensor_kind(value) if is_read else None)
    if isinstance(value, CONSTANTS):
        return (type(value), repr(value))
    if isinstance(value, (tuple, list)):
        return (type(value), *(_state(each, is_read) for each in value))
    if isinstance(value, dict):
        return (type(value), *((name, _state(each, is_read)) for name, each in value.items()))
    return (id(value), value)
