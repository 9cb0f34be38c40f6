"""Forms of kernels that a compiler writes better code for equal the plain ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onward.providers.torch.kernels import composite_norm, norm
from onward.providers.torch.kernels.hidden_samples import without_hidden
from onward.providers.torch.kernels.narrow_gelu import (
    narrow_gelu,
    narrow_gelu_gradient,
    normal_distribution,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


def test_distribution_is_exact_to_what_16_bits_hold() -> None:
    z = torch.linspace(-9, 9, 10_001)
    phi, bell = normal_distribution(z)
    wide = z.double()
    torch.testing.assert_close(phi.double(), torch.special.ndtr(wide), rtol=0, atol=3e-7)
    torch.testing.assert_close(bell.double(), torch.exp(-wide * wide / 2), rtol=1e-5, atol=1e-9)
    relative = (phi.double() / torch.special.ndtr(wide) - 1).abs()
    assert relative[z > -5].max() < 2**-9  # half a step of bfloat16, in the tail, too


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_gelu_is_rounded_once(dtype: torch.dtype, approximate: str) -> None:
    x = torch.linspace(-6, 6, 4001).to(dtype)
    dy = torch.linspace(2, -1, 4001).to(dtype)
    wide = x.double().requires_grad_()
    y = torch.nn.functional.gelu(wide, approximate=approximate)
    (dx,) = torch.autograd.grad(y, wide, dy.double())
    step = torch.finfo(dtype).eps
    found_y, found_dx = narrow_gelu(x, approximate), narrow_gelu_gradient(dy, x, approximate)
    for found, exact in ((found_y, y), (found_dx, dx)):
        torch.testing.assert_close(found.double(), exact.detach(), rtol=step, atol=1e-6)


def test_batch_normalisation_written_out_equals_atens() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 5, 2, generator=generator)
    mean, var, scale, b = (torch.rand(4, generator=generator) + 0.1 for _ in range(4))
    given = (mean, var, scale, b, 1e-5)
    torch.testing.assert_close(norm._written_out(x, *given), norm._affine(x, *given))
    narrow = norm._written_out(x.bfloat16(), *given)
    torch.testing.assert_close(narrow, norm._affine(x.bfloat16(), *given), rtol=1e-2, atol=1e-2)


def test_compiled_for_a_cpu_each_channel_has_one_root() -> None:
    """Else a compiler takes the root, and a quotient, for every 16 elements."""
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(3, 4, 5, 2, generator=generator) for _ in range(2))
    mean, var, scale, b = (torch.rand(4, generator=generator) + 0.1 for _ in range(4))
    options: dict[str, Any] = {"epsilon": 1e-5, "momentum": 0.9, "training_mode": 1}
    backward = {"wrt": [0, 1, 2], "wanted": [True] * 3, **options}

    def step(x: torch.Tensor, dy: torch.Tensor) -> Any:
        y, *_ = norm.batch_normalization(x, scale, b, mean, var, **options)
        given = (x, scale, b, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0), y, None, None, dy)
        return y, composite_norm.batch_normalization_grad(*given, **backward)

    kept = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        kept.extend(node for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    found = torch.compile(step, backend=keep, fullgraph=True)(x, dy)
    torch.testing.assert_close(found, step(x, dy))
    assert [node.target for node in kept].count(torch.ops.onward.hold) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["heads first", "heads last", "sliced"])
def test_hidden_samples_become_zeros_where_compiled(layout: str) -> None:
    x = torch.randn(5, 3, 7, 8, device="cuda")
    if layout == "heads last":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        x = torch.randn(5, 3, 7, 16, device="cuda")[..., :8]
    seen = torch.tensor([True, False, True, True, False], device="cuda").reshape(5, 1, 1, 1)
    expected = without_hidden(x, seen)
    compiled = torch.compile(lambda x, seen: (without_hidden(x + 0, seen), x * 2))
    found, twice = compiled(x, seen)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(twice, x * 2)
