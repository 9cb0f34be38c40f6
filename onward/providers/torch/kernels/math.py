"""Elementwise arithmetic, comparison and logic."""

from __future__ import annotations

import torch

from onward.graph.table import OpTable
from onward.providers.torch.types import Tensor

kernel = OpTable()


@kernel("Add")
def add(a: Tensor, b: Tensor) -> Tensor:
    return torch.add(a, b)
