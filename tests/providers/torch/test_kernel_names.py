"""Operators that torch may have kernels for, without loading it."""

from __future__ import annotations

from onward.providers.torch.kernel_names import may_have
from onward.providers.torch.kernels.attention_grad import DOMAIN as PRIVATE
from onward.providers.torch.table import HOST, KERNELS


def test_may_have_covers_every_kernel() -> None:
    keys = [key for key in (*KERNELS, *HOST) if key[0] != PRIVATE]  # not in users' models
    assert [key for key in keys if not may_have(*key)] == []


def test_may_have_excludes_unknown_operators_and_domains() -> None:
    assert may_have("ai.onnx", "Add")
    assert not may_have("", "Frobnicate") and not may_have("my.own", "Add")
