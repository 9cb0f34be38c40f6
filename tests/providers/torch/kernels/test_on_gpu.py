"""Kernels that go their own way on a GPU, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.providers.torch.kernels.attention import attend, attention, linear_attention
from onward.providers.torch.kernels.contrib_attention import group_query_attention
from onward.providers.torch.kernels.random import random_key, uniform
from onward.providers.torch.kernels.recurrent import gru, lstm, rnn
from tests.passes.uniform_numbers import uniform_numbers

pytestmark = pytest.mark.gpu
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
PLAIN = {"is_causal": 0, "softcap": 0.0, "qk_matmul_output_mode": 0, "outputs": 3}


@pytest.fixture(autouse=True)
def inference() -> Any:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def same(kernel: Callable[..., Any], *inputs: Any, error: float = 2e-2, **attributes: Any) -> None:
    """The CPU's result, computed in float32, is the GPU's."""

    def moved(x: Any) -> Any:
        return x.cuda() if isinstance(x, Tensor) else x

    def widened(x: Any) -> Any:
        return x.float() if isinstance(x, Tensor) and x.is_floating_point() else x

    results = kernel(*[moved(x) for x in inputs], **attributes)
    expected = kernel(*[widened(x) for x in inputs], **attributes)
    if isinstance(results, Tensor):
        results, expected = (results,), (expected,)
    for result, wanted in zip(results, expected, strict=True):
        if wanted is not None:
            torch.testing.assert_close(result.float().cpu(), wanted, atol=error, rtol=error)


@TYPES
@pytest.mark.parametrize("size", [64, 8, 5])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("queries", [1, 6])
def test_a_query_that_sees_nothing_gets_zeros(
    dtype: torch.dtype, size: int, kv_heads: int, queries: int
) -> None:
    q = torch.randn(2, 4, queries, size, dtype=dtype)
    k, v = (torch.randn(2, kv_heads, 9, size, dtype=dtype) for _ in range(2))
    seen = torch.rand(2, 1, queries, 9) > 0.4
    seen[0, 0, -1] = False
    added = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)
    for mask in (seen, added, seen[0, 0], None):
        same(attend, q, k, v, mask if mask is None or mask.dim() == 4 else mask[None, None])


@TYPES
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("queries", [1, 16, 64])
def test_attention_agrees(dtype: torch.dtype, causal: int, queries: int) -> None:
    q = torch.randn(2, 8, queries, 64, dtype=dtype)
    k, v = (torch.randn(2, 2, 64, 64, dtype=dtype) for _ in range(2))
    attributes = {**PLAIN, "is_causal": causal}
    same(attention, q, k, v, **attributes)
    same(attention, q, k, v, torch.rand(queries, 64) > 0.2, **attributes)
    same(attention, q, k, v, None, k[:, :, :7], v[:, :, :7], **attributes)
    same(attention, q, k, v, None, None, None, torch.tensor([64, 20]), **attributes)
    same(attention, q, k, v, **{**attributes, "softcap": 3.0, "outputs": 4})


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_agrees(rule: str) -> None:
    k = torch.nn.functional.normalize(torch.randn(2, 150, 2, 16), dim=-1).flatten(2)
    decay = -torch.rand(2, 150, 2) if "gated" in rule else None
    beta = torch.rand(2, 150, 2) if "delta" in rule else None
    inputs = [torch.randn(2, 150, 64), k, torch.randn(2, 150, 48), None, decay, beta]
    attributes = {"chunk_size": 64, "kv_num_heads": 2, "q_num_heads": 4, "scale": 0.0}
    same(linear_attention, *inputs, update_rule=rule, **attributes)


LAYERS: list[tuple[Any, int, dict[str, int]]] = [
    (lstm, 4, {"input_forget": 0}),
    (gru, 3, {"linear_before_reset": 1}),
    (gru, 3, {"linear_before_reset": 0}),
    (rnn, 1, {}),
]


@pytest.mark.parametrize("layer, gates, attributes", LAYERS)
@pytest.mark.parametrize("direction, n", [("forward", 1), ("reverse", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("lengths", [None, [7, 3, 1]])
@pytest.mark.parametrize("biased", [True, False])
def test_recurrent_layers_agree_and_cudnn_has_nothing_to_say(
    layer: Any,
    gates: int,
    attributes: dict[str, int],
    direction: str,
    n: int,
    lengths: list[int] | None,
    biased: bool,
) -> None:
    x, w, r = torch.randn(7, 3, 5), torch.randn(n, gates * 8, 5), torch.randn(n, gates * 8, 8)
    b = torch.randn(n, 2 * gates * 8) if biased else None
    steps = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    same(layer, x, w, r, b, steps, direction=direction, layout=0, **attributes)


@TYPES
@pytest.mark.parametrize("window", [-1, 4])
@pytest.mark.parametrize("length", [1, 21])
def test_grouped_queries_agree(dtype: torch.dtype, window: int, length: int) -> None:
    q, k = (torch.randn(2, length, heads * 64, dtype=dtype) for heads in (8, 2))
    past, table = torch.randn(2, 2, 32, 64, dtype=dtype), torch.randn(64, 32, dtype=dtype)
    ends = torch.tensor([9, 20], dtype=torch.int32) if length == 1 else torch.tensor([20, 20])
    attributes = {"num_heads": 8, "kv_num_heads": 2, "do_rotary": 1, "outputs": 3}
    inputs = [q, k, k, past, past, ends, 21, table, table]
    same(group_query_attention, *inputs, local_window_size=window, **attributes, error=5e-2)


def test_uniform_draws_the_bits_that_a_cpu_draws() -> None:
    draw, gpu = torch.tensor([-5, 2**40, 1]), torch.device("cuda")

    def drawn(draw: Tensor) -> Tensor:
        return uniform(random_key(draw), [1000, 7], node=3, device=gpu)

    wanted = torch.from_numpy(uniform_numbers(draw.tolist(), 3, 7000)).reshape(1000, 7)
    for run in (drawn, torch.compile(drawn)):
        torch.testing.assert_close(run(draw.cuda()).cpu(), wanted, atol=0, rtol=0)
