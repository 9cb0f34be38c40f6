"""Restore a module's buffers and modes, and torch's random state, after a `with` block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from onward.pytorch.call_structure import flatten


@contextmanager
def keep_state(module: nn.Module) -> Iterator[None]:
    """Restore the module's buffers, its modes and torch's generators at the end of the block."""
    modules = list(module.modules())
    buffers = [dict(each._buffers) for each in modules]
    held = {id(b): b for each in buffers for b in each.values() if b is not None}
    copies = {key: (tensor.detach().clone(), tensor._version) for key, tensor in held.items()}
    modes = [each.training for each in modules]
    devices = {t.device.index for t in (*module.parameters(), *held.values()) if t.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices)):
        try:
            yield
        finally:
            for each, saved, mode in zip(modules, buffers, modes):
                each._buffers.clear()
                each._buffers.update(saved)
                each.training = mode
            with torch.no_grad():
                for key, (copy, version) in copies.items():
                    if held[key]._version != version:
                        held[key].copy_(copy)


def copy_call(args: Sequence[Any], kwargs: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with copies of their tensors, which a call may change in place."""
    tensors, structure = flatten((tuple(args), dict(kwargs)))
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    found: tuple[Sequence[Any], dict[str, Any]] = structure.rebuild(copies)
    return found
