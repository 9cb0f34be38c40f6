"""Tensors of a module, of its call and of torch's generator that a forward may exchange."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from onward.pytorch.changing_items import Initializes
from onward.pytorch.fallback import CannotCapture


class HeldTensors:
    """The tensors of a module and of its call; `check` refuses a forward that exchanged some."""

    def __init__(self, module: nn.Module, call: Iterable[torch.Tensor]) -> None:
        tensors = (*call, *module.parameters())
        self._required = [(tensor, tensor.requires_grad) for tensor in tensors]
        modules = list(module.named_modules())
        self._buffers = [(path, each._buffers, dict(each._buffers)) for path, each in modules]

    def check(self, *, is_export: bool = False) -> None:
        if any(tensor.requires_grad != before for tensor, before in self._required):
            raise CannotCapture("it calls requires_grad_ of an argument or a parameter")
        for path, now, before in () if is_export else self._buffers:
            for name in now.keys() | before.keys():
                if now.get(name) is not before.get(name):
                    where = f"{path}.{name}".removeprefix(".")
                    raise Initializes(f"it replaces its buffer {where}: change it in place")

    def restore(self) -> None:
        """Put the buffers back that were there."""
        for _, now, before in self._buffers:
            for name in [name for name in now if name not in before]:
                del now[name]
            now.update(before)


@contextmanager
def refuse_seeds() -> Iterator[None]:
    """Refuse a trace that seeded torch's generator, whose state is restored."""
    state = torch.get_rng_state()
    try:
        yield
        if not torch.equal(torch.get_rng_state(), state):
            raise CannotCapture("it seeds torch's generator of random numbers")
    finally:
        torch.set_rng_state(state)
