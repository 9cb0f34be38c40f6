"""ModuleContents: the tensors and submodules of a module, found once and checked in each call."""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import nn

Tensor = torch.Tensor


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

    Tensors are read again in each call: optimizers, `.to()` and FSDP replace them.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules: list[nn.Module] = list(module.modules())
        self._held = [  # checked in every call
            (each._parameters, len(each._parameters), each._buffers, len(each._buffers))
            for each in self._modules
        ]
        self._children = [(each._modules, tuple(each._modules.values())) for each in self._modules]
        self._places: dict[str, tuple[dict[str, Tensor | None], str]] = {}
        named = list(module.named_modules(remove_duplicate=False))
        for kind in ("_parameters", "_buffers"):
            for path, each in named:
                held = getattr(each, kind)
                for name, tensor in held.items():
                    if tensor is not None:
                        self._places[f"{path}.{name}" if path else name] = held, name

    def is_current(self) -> bool:
        """Whether no submodule, parameter or buffer was added, removed or exchanged."""
        for parameters, count, buffers, kept in self._held:
            if len(parameters) != count or len(buffers) != kept:
                return False
        return all(tuple(held.values()) == children for held, children in self._children)

    def tensors(self) -> dict[str, Tensor]:
        """The parameters, then the buffers, by name; a tied one once for each name."""
        found = _Tensors(self._modules[0])
        for name, (held, key) in self._places.items():
            found[name] = held[key]  # type: ignore[assignment]
        return found

    def modes(self) -> tuple[object, ...]:
        """Whether each submodule is in training mode, and how many hooks it has."""
        return tuple(
            [
                (each.training, len(each._forward_hooks), len(each._forward_pre_hooks))
                for each in self._modules
            ]
        )
