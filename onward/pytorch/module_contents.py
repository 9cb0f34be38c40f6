"""ModuleContents: the tensors and submodules of a module, found once and checked in each call."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, getitem, itemgetter, methodcaller
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor
_SETTINGS = (  # numbers of torch's layers that trainings change between steps
    (nn.modules.dropout._DropoutNd, "p"),
    (nn.MultiheadAttention, "dropout"),
    (nn.RNNBase, "dropout"),
    (nn.modules.batchnorm._NormBase, "momentum"),
)


class _Tensors(dict[str, Tensor]):
    """Parameters and buffers by name; other attributes are found when they are asked for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Tensor:
        found: Tensor = attrgetter(name)(self._module)
        return found


class ModuleContents:
    """Reads a module's parameters and buffers by name, faster than `named_parameters`.

    Tensors are read again in each call: optimizers, `.to()` and FSDP replace them. All reads go
    through `map`, since a loop over a thousand small things costs as much as a small layer.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        modules = list(module.modules())
        self._attributes = [each.__dict__ for each in modules]
        self._children = [each._modules for each in modules]
        self._settings = [
            (each.__dict__, name) for each in modules for kind, name in _SETTINGS
            if isinstance(each, kind)
        ]  # fmt: skip
        self._held: list[dict[str, Any]] = [
            held for each in modules for held in (each._parameters, each._buffers)
        ]
        self._held += self._children
        self._sizes, self._submodules = list(map(len, self._held)), self._list_submodules()
        self._names: list[str] = []
        self._places: list[dict[str, Any]] = []
        self._keys: list[str] = []
        named = list(module.named_modules(remove_duplicate=False))
        for kind in ("_parameters", "_buffers"):
            for path, each in named:
                held = getattr(each, kind)
                for name, tensor in held.items():
                    if tensor is not None:
                        self._names.append(f"{path}.{name}" if path else name)
                        self._places.append(held)
                        self._keys.append(name)

    def _list_submodules(self) -> list[Any]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def is_current(self) -> bool:
        """Whether no submodule, parameter or buffer was added, removed or exchanged."""
        return (
            list(map(len, self._held)) == self._sizes
            and self._list_submodules() == self._submodules
        )

    def tensors(self) -> dict[str, Tensor]:
        """The parameters, then the buffers, by name; a tied one once for each name."""
        found = _Tensors(self._module)
        found.update(zip(self._names, map(getitem, self._places, self._keys)))
        return found

    def modes(self) -> tuple[object, ...]:
        """Each submodule's training mode, number of hooks, own forward, and rate of dropout."""
        return (
            *map(methodcaller("get", "forward"), self._attributes),
            *map(itemgetter("training"), self._attributes),
            *map(len, map(itemgetter("_forward_hooks"), self._attributes)),
            *map(len, map(itemgetter("_forward_pre_hooks"), self._attributes)),
            *map(len, map(itemgetter("_backward_hooks"), self._attributes)),
            *map(len, map(itemgetter("_backward_pre_hooks"), self._attributes)),
            *(attributes.get(name) for attributes, name in self._settings),
        )
