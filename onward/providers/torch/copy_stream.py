"""CUDA streams on which data is copied while the device computes."""

from __future__ import annotations

import functools

import torch


@functools.cache
def copy_stream(device: torch.device, purpose: str) -> torch.cuda.Stream:
    """The stream of a device for copies of one purpose: they wait only for each other."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
