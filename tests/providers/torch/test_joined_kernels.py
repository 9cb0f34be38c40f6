"""Inductor joins small kernels with each other, and no large ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy

from onward.providers.torch.joined_kernels import LARGEST, join_only_small, partition

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


def joined(nodes: list[Any], *_: Any) -> list[list[Any]]:
    """All of them in one kernel."""
    return [nodes]


def test_large_kernels_are_not_joined() -> None:
    sizes = {
        "small": {"x": 9, "y": 16384},
        "pixels": {"x": sympy.Integer(50176), "y": sympy.Integer(384)},
        "limit": {"x": LARGEST, "r0_": 1},
        "unknown": {"x": sympy.Symbol("s0")},
    }
    facts = {name: SimpleNamespace(tiling=tiling) for name, tiling in sizes.items()}
    found = partition(joined, list(facts), "scheduling", facts)
    assert found == [["pixels"], ["small", "limit", "unknown"]]
    assert partition(joined, ["pixels"], "scheduling", facts) == [["pixels"]]


def test_other_compilers_keep_torchs_choice() -> None:
    from torch._inductor.codegen import triton_combo_kernel as combo

    def chosen() -> Any:
        return combo._custom_combo_kernel_horizontal_partition_algorithm

    before = chosen()
    during = join_only_small(lambda: chosen())()
    assert during.func is partition and during.args == (before,)
    assert chosen() is before

    def fail() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        join_only_small(fail)()
    assert chosen() is before
