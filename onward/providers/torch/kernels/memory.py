"""Calls that say when and where a value is kept in memory (passes/memory_functions.py)."""

from __future__ import annotations

import functools

from onward.graph.operator_table import OpTable
from onward.graph.scopes import COMPOSITES
from onward.passes.memory_functions import RUN_AFTER
from onward.providers.torch.dtypes import Tensor, Unused

kernel = OpTable()
composite = functools.partial(kernel, domain=COMPOSITES)


@composite(RUN_AFTER)
def run_after(x: Tensor, token: Unused = None) -> Tensor:
    """x: torch runs nodes in the graph's order, and merges none"""
    return x
