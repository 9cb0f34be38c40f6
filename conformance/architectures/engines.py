"""Ways of running an architecture's module: each is compared with eager torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from conformance.architectures.case import Case


@dataclass(frozen=True)
class Running:
    """A module that an engine runs: how it is called, and who has its parameters."""

    call: Callable[..., Any]
    module: nn.Module


def eager(case: Case) -> Running:
    return Running(case.module, case.module)


def compiled(case: Case) -> Running:
    """torch.compile with the default compiler."""
    return Running(torch.compile(case.module), case.module)


def exported(case: Case) -> Running:
    """torch.export with a dynamic first axis of every tensor; functional, as exporters need it."""

    def first_axis(leaf: object) -> dict[int, Any] | None:
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return {0: torch.export.Dim.AUTO}
        return None

    given = inspect.signature(case.module.forward).bind(*case.args, **case.kwargs).arguments
    program = torch.export.export(
        case.module,
        case.args,
        case.kwargs,
        dynamic_shapes={name: pytree.tree_map(first_axis, value) for name, value in given.items()},
        strict=False,
    )
    program.run_decompositions({})
    module = program.module()
    return Running(module, module)


def float64(case: Case) -> Running:
    """Eager in double precision: what is nearer to it than float32 cannot be told from rounding."""
    module = case.module.double()

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _cast((args, kwargs), torch.float32, torch.float64)
        return _cast(module(*args, **kwargs), torch.float64, torch.float32)

    return Running(call, module)


def _cast(tree: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """The same structure with every tensor of one type in another."""

    def cast(leaf: Any) -> Any:
        is_old = isinstance(leaf, torch.Tensor) and leaf.dtype == old
        return leaf.to(new) if is_old else leaf

    return pytree.tree_map(cast, tree)


def module(case: Case) -> Running:
    """onward.Module with its default options."""
    import onward

    made = onward.Module(case.module)
    return Running(made, made)


ENGINES = {each.__name__: each for each in (module, eager, compiled, exported, float64)}
