"""Checks of a module and of its calls, in the words of torch: devices, and what is not a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onward.pytorch.call_structure import flatten

_USUAL = {torch.Tensor, nn.Parameter, int, float, bool, str, type(None)}


def is_data_parallel(module: nn.Module) -> bool:
    return isinstance(module, nn.DataParallel)


def devices_of(module: nn.Module) -> list[torch.device]:
    """The devices of a module's parameters, each once."""
    return list(dict.fromkeys(parameter.device for parameter in module.parameters()))


def call_device(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The device of a module, or of the first tensor of a call; None if there is neither."""
    found = devices_of(module) or [each.device for each in flatten((args, kwargs))[0]]
    return found[0] if found else None


def tensors_elsewhere(device: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The devices of a call's tensors that are not the given one."""
    return [each.device for each in flatten((args, kwargs))[0] if each.device != device]


def constant_types(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[type]:
    """The types of a call's arguments that are constants of its trace."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (bool, int, float, str)):
            yield type(value)


def unsupported_argument(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The first argument of a call that is neither made of tensors nor a constant; else None."""
    unusual = [value for value in (*args, *kwargs.values()) if type(value) not in _USUAL]
    if not unusual:
        return None
    tensors, structure = flatten(unusual)
    found = next(structure.objects(), None)
    if found is None and not tensors and not any(isinstance(v, torch.Tensor) for v in args):
        return next((v for v in unusual if hasattr(v, "__dataclass_fields__")), None)
    return found
