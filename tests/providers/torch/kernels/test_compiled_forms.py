"""Forms of kernels that a compiler writes better code for equal the plain ones."""

from __future__ import annotations

import operator
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


NORM = {"epsilon": 1e-5}
BATCH: dict[str, Any] = {**NORM, "momentum": 0.9, "training_mode": 1}
ROWS: dict[str, Any] = {**NORM, "axis": -1, "stash_type": 1}


def batch_norm(x: torch.Tensor, dy: torch.Tensor) -> Any:
    mean, var, scale, b = torch.linspace(0.5, 2, 4 * x.shape[1]).reshape(4, -1)
    y, *_ = norm.batch_normalization(x, scale, b, mean, var, **BATCH)
    given = (x, scale, b, x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0), y, None, None, dy)
    wanted: dict[str, Any] = {"wrt": [0, 1, 2], "wanted": [True] * 3}
    return y, composite_norm.batch_normalization_grad(*given, **BATCH, **wanted)


def layer_norm(x: torch.Tensor, _: torch.Tensor) -> Any:
    scale, b = torch.linspace(0.5, 2, 2 * x.shape[-1]).reshape(2, -1)
    return norm.layer_normalization(x, scale, b, **ROWS, outputs=3)


def rms_norm(x: torch.Tensor, dy: torch.Tensor) -> Any:
    scale = torch.linspace(0.5, 2, x.shape[-1])
    y = norm.rms_normalization(x, scale, **ROWS)
    wanted: dict[str, Any] = {"wrt": [0, 1], "wanted": [True] * 2}
    return y, composite_norm.rms_normalization_grad(x, scale, y, dy, **ROWS, **wanted)


@pytest.mark.integration
@pytest.mark.parametrize("step", [batch_norm, layer_norm, rms_norm], ids=lambda step: step.__name__)
def test_compiled_for_a_cpu_each_row_or_channel_has_one_root(step: Any) -> None:
    """Inductor writes what it views by strides; else it takes a root for every 16 elements."""
    x, dy = torch.randn(2, 3, 4, 5, 48, generator=torch.Generator().manual_seed(0))
    from torch._inductor.compile_fx import compile_fx  # warns

    kept: list[torch.fx.Node] = []

    def keep(graph: torch.fx.GraphModule, given: Any) -> Any:
        kept.extend(graph.graph.nodes)
        return compile_fx(graph, given)

    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(step, backend=keep, fullgraph=True)(x, dy)
    torch.testing.assert_close(found, step(x, dy), rtol=1e-5, atol=1e-5)
    roots = [node for node in kept if "rsqrt" in node.name]
    assert roots
    for root in roots:
        (reader,) = root.users
        if reader.target is operator.mul:  # the root times the scale of a channel
            (reader,) = reader.users
        assert reader.target == "as_strided", reader


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
