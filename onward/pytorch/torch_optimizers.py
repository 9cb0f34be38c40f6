"""torch.optim's optimizers as ours: settings, parameter groups and state, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from onward.errors import OptionError
from onward.message_text import list_names
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.groups import Group
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.rmsprop import RMSprop
from onward.optimizers.sgd import SGD

Array = np.ndarray[Any, Any]

KINDS: dict[type[torch.optim.Optimizer], type[Optimizer]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: AdamW,
    torch.optim.RMSprop: RMSprop,
    torch.optim.Adagrad: Adagrad,
    torch.optim.Adafactor: Adafactor,
    torch.optim.Muon: Muon,
}
# our slot -> torch's, where they differ: ours are sums, torch's are averages with this beta
_SUMS = {
    "exp_sum": ("exp_avg", 0),
    "exp_sum_sq": ("exp_avg_sq", 1),
    "max_exp_sum_sq": ("max_exp_avg_sq", 1),
}


@dataclass(frozen=True)
class GroupOfTorch:
    """A parameter group of torch's optimizer: our optimizer, and the parameters by name."""

    optimizer: Optimizer
    parameters: dict[str, torch.Tensor]


def read_groups(
    optimizer: torch.optim.Optimizer, module: torch.nn.Module
) -> tuple[GroupOfTorch, ...]:
    """The parameter groups of an optimizer of torch, with optimizers of ours."""
    kind = _kind(optimizer)
    names = {id(tensor): name for name, tensor in module.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        unknown = [p for p in group["params"] if id(p) not in names]
        if unknown:
            raise OptionError(
                f"the optimizer has a parameter of shape {list(unknown[0].shape)} that the module "
                "does not have\n"
                "make it from the module's own: torch.optim.AdamW(module.parameters())"
            )
        parameters = {names[id(p)]: p for p in group["params"] if p.requires_grad}
        groups.append(GroupOfTorch(_convert(kind, group), parameters))
    return tuple(groups)


def session_groups(groups: tuple[GroupOfTorch, ...], trained: list[str]) -> list[Group]:
    """Groups for TrainingOptions, of the parameters that are trained."""
    named = [([n for n in each.parameters if n in trained], each.optimizer) for each in groups]
    return [Group(parameters=names, optimizer=own) for names, own in named if names]


def _kind(optimizer: torch.optim.Optimizer) -> type[Optimizer]:
    found = KINDS.get(type(optimizer))
    if found is None:
        raise OptionError(
            f"{type(optimizer).__name__} is not an optimizer whose formula is known\n"
            f"give one of torch.optim: {list_names(kind.__name__ for kind in KINDS)}, or one of "
            "onward.optimizers"
        )
    return found


def _convert(kind: type[Optimizer], group: Mapping[str, Any]) -> Optimizer:
    """The settings of a parameter group, under the names that both have."""
    if kind is Adam and group.get("decoupled_weight_decay"):
        kind = AdamW
    names = [field.name for field in fields(kind)]
    known = {name: _plain(group[name]) for name in names if group.get(name) is not None}
    return kind(**known)


def _plain(setting: Any) -> Any:
    """A setting as Python numbers: a learning rate may be a tensor."""
    if isinstance(setting, torch.Tensor):
        return setting.item()
    return tuple(map(_plain, setting)) if isinstance(setting, (tuple, list)) else setting


# -- state ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slot:
    """A slot of ours as torch has it: factor times ours, under its own name."""

    name: str
    factor: float


def read_state(
    optimizer: torch.optim.Optimizer, groups: tuple[GroupOfTorch, ...]
) -> tuple[int, dict[tuple[str, str], Array]]:
    """The number of updates, and the slots as {(slot, parameter): array}."""
    steps: dict[int, str] = {}
    slots: dict[tuple[str, str], Array] = {}
    for group, name, parameter in _each(groups):
        held = optimizer.state.get(parameter)
        if not held:
            continue
        found = {}
        for slot, ours in _slots(group.optimizer, parameter).items():
            tensor = held.get(ours.name)
            if tensor is not None:
                found[slot, name] = tensor.detach().cpu().numpy() / np.float32(ours.factor)
        slots |= found
        # SGD and Muon do not count; only their first step differs from the others
        steps[int(held["step"]) if "step" in held else int(bool(found))] = name
    if len(steps) > 1:
        least, most = min(steps), max(steps)
        raise OptionError(
            f"the optimizer made {least} steps with {steps[least]!r} and {most} with "
            f"{steps[most]!r}; a session counts one number of steps\n"
            "give an optimizer whose parameters were trained together, or a new one"
        )
    return next(iter(steps), 0), slots


def write_state(
    optimizer: torch.optim.Optimizer,
    groups: tuple[GroupOfTorch, ...],
    steps: int,
    slots: Mapping[tuple[str, str], Array],
) -> None:
    """Write what `read_state` reads."""
    for group, name, parameter in _each(groups):
        wanted = _slots(group.optimizer, parameter)
        if steps == 0 or not all((slot, name) in slots for slot in wanted):
            continue
        held = optimizer.state[parameter]
        for slot, theirs in wanted.items():
            array = slots[slot, name] * np.float32(theirs.factor)
            new = torch.from_numpy(np.array(array)).to(parameter.device)
            known = held.get(theirs.name)
            held[theirs.name] = new.to(parameter.dtype if known is None else known.dtype)
        if not isinstance(group.optimizer, (SGD, Muon)):
            held["step"] = (
                torch.full_like(held["step"], steps)
                if "step" in held
                else (torch.tensor(float(steps), device=_step_device(optimizer, parameter)))
            )
        elif isinstance(group.optimizer, SGD):
            held.setdefault("momentum_buffer", None)


def _step_device(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.device:
    settings = optimizer.defaults
    on_device = settings.get("capturable") or settings.get("fused")
    return parameter.device if on_device else torch.device("cpu")


def _each(groups: tuple[GroupOfTorch, ...]) -> Iterator[tuple[GroupOfTorch, str, torch.Tensor]]:
    for group in groups:
        for name, parameter in group.parameters.items():
            yield group, name, parameter


def _slots(optimizer: Optimizer, parameter: torch.Tensor) -> dict[str, _Slot]:
    betas = getattr(optimizer, "betas", (0.0, 0.0))
    slots = optimizer.slots(tuple(parameter.shape))
    return {
        slot: _Slot(_SUMS[slot][0], 1.0 - betas[_SUMS[slot][1]])
        if slot in _SUMS
        else _Slot(slot, 1.0)
        for slot in slots
    }
