"""Attention of a wrapped module: its forward pass runs once, and keeps what its gradient needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onward.pytorch.module import Module


class Attends(nn.Module):
    """Attention between two products; the keys have fewer heads."""

    def __init__(self, key_heads: int) -> None:
        super().__init__()
        self.heads = key_heads
        self.q, self.k, self.v = (nn.Linear(8, 4 * n) for n in (4, key_heads, key_heads))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = ((self.q, 4), (self.k, self.heads), (self.v, self.heads))
        q, k, v = (f(x).view(*x.shape[:2], n, 4).transpose(1, 2) for f, n in parts)
        return nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.heads != 4
        )


class Forwards(TorchDispatchMode):
    """Counts the forward passes of attention."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += "flash_attention_for_cpu.default" in str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.integration
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_attention_runs_once(key_heads: int, masked: bool) -> None:
    eager = Attends(key_heads)
    module = Module(Attends(key_heads), {"provider": "torch"})
    module.load_state_dict(eager.state_dict())
    for length in (5, 7):
        x = torch.rand(2, length, 8)
        given = (x, torch.rand(1, 1, length, length) > 0.3) if masked else (x,)
        eager(*given).square().mean().backward()
        module(*given)  # captures it
        with Forwards() as forwards:
            module(*given).square().mean().backward()
        assert forwards.count == 1
        for name, parameter in module.named_parameters():
            expected = eager.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=1e-6)
