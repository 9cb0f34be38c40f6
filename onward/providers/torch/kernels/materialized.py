"""Tensors that a compiler stores as they are."""

from __future__ import annotations

import torch

from onward.providers.torch.dtypes import Tensor


def materialized(x: Tensor) -> Tensor:
    """Store x in memory, in its own type.

    Inductor may compute x again in each kernel that reads it, or store what x is computed from
    instead: numbers of 32 bits, where x has 16 or is a mask. It stores tensors that are viewed
    through strides.
    """
    return torch.as_strided(x, x.shape, x.stride())
