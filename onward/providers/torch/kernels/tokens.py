"""Functions of domain `onward` that leave out rows, and put them back: passes/token_functions.py.

Written without a row of zeros, which would have to be appended to a copy of all rows: Inductor then
fuses them into the kernels before and after.
"""

from __future__ import annotations

import functools

import torch

from onward.graph.operator_table import OpTable
from onward.passes.token_functions import DOMAIN, PACK, PACK_GRADIENTS, UNPACK
from onward.providers.torch.dtypes import Tensor, Unused

kernel = OpTable()
function = functools.partial(kernel, domain=DOMAIN)


@function(PACK)
def pack_tokens(x: Tensor, gather: Tensor, restore: Unused = None) -> Tensor:
    """y = x[gather]"""
    return x.index_select(0, gather)


@function(UNPACK)
def unpack_tokens(y: Tensor, gather: Unused, restore: Tensor) -> Tensor:
    """x = y[restore], 0 for rows that y does not have"""
    count = y.shape[0]
    rows = y.index_select(0, restore.clamp(max=count - 1))
    return torch.where(_columns(restore < count, y), rows, 0)


@function(PACK_GRADIENTS)
def pack_gradients(dx: Tensor, gather: Tensor, restore: Tensor) -> Tensor:
    """dy = dx[gather], 0 for rows that fill the bucket"""
    places = torch.arange(gather.shape[0], device=gather.device)
    kept = restore.index_select(0, gather) == places
    return torch.where(_columns(kept, dx), dx.index_select(0, gather), 0)


def _columns(flags: Tensor, x: Tensor) -> Tensor:
    """One flag for each row of x, in as many axes as x has."""
    return flags.reshape(-1, *[1] * (x.dim() - 1))
