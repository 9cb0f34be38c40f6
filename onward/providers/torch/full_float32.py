"""Keep torch from rounding float32 on a GPU, which it does in convolutions unless it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


def may_round(provider_options: Mapping[str, Any]) -> bool:
    """Whether a provider with these options would run on a GPU here."""
    device = str(provider_options.get("device", "cuda"))
    return torch.cuda.is_available() and not device.startswith("cpu")


@contextmanager
def full_float32() -> Iterator[None]:
    """Inside, convolutions and products do not use TF32, whose mantissa has 10 bits."""
    switches: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = False
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
