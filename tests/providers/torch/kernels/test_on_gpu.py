"""Kernels with separate code for a GPU, compared with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from onward.providers.torch.kernels.attention import attend, attention, linear_attention
from onward.providers.torch.kernels.composite_activation import gelu_grad
from onward.providers.torch.kernels.composite_conv import conv_grad
from onward.providers.torch.kernels.composite_loss import softmax_cross_entropy_loss_grad
from onward.providers.torch.kernels.composite_norm import (
    batch_normalization_grad,
    group_normalization_grad,
    layer_normalization_grad,
    rms_normalization_grad,
)
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
def test_fully_masked_query_is_zero(
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
def test_recurrent_layers_agree_without_cudnn_warnings(
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


def everything(inputs: int) -> dict[str, Any]:
    """The gradients of all inputs are wanted."""
    return {"wrt": list(range(inputs)), "wanted": [True] * inputs}


@TYPES
@pytest.mark.parametrize("outputs", [3, 1])
def test_gradients_of_normalised_rows(dtype: torch.dtype, outputs: int) -> None:
    x, dy = (torch.randn(6, 5, 64, dtype=dtype) for _ in range(2))
    scale = torch.randn(64, dtype=dtype)
    options = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    mean, inv = torch.native_layer_norm(x.float(), [64], None, None, 1e-5)[1:]
    given = (mean, inv) if outputs == 3 else (None, None)
    if outputs == 3 or dtype is torch.float32:  # halves always come with statistics
        same(layer_normalization_grad, x, scale, None, None, *given, dy, **options, **everything(3))
    same(rms_normalization_grad, x, scale, None, dy, **options, **everything(2))


@TYPES
@pytest.mark.parametrize("training_mode", [1, 0])
def test_gradients_of_normalised_images(dtype: torch.dtype, training_mode: int) -> None:
    x, dy = (torch.randn(4, 8, 6, 7, dtype=dtype) for _ in range(2))
    scale = torch.randn(8, dtype=dtype)
    options = {"epsilon": 1e-5, "num_groups": 2, "stash_type": 1}
    same(group_normalization_grad, x, scale, None, None, dy, **options, **everything(3))
    for statistics in {dtype, torch.float32}:
        var, mean = torch.var_mean(x.float(), [0, 2, 3], correction=0)
        inputs = (x, scale.to(statistics), None, mean.to(statistics), var.to(statistics))
        same(
            batch_normalization_grad,
            *(*inputs, None, None, None, dy),
            error=0.1 if dtype is torch.bfloat16 else 2e-2,  # ATen rounds each of 168 terms to it
            epsilon=1e-5,
            momentum=0.9,
            training_mode=training_mode,
            **everything(3 if training_mode else 5),
        )


@TYPES
@pytest.mark.parametrize("pads", [[1, 1, 1, 1], [0, 1, 2, 1]])
def test_gradients_of_convolutions(dtype: torch.dtype, pads: list[int]) -> None:
    x, w = torch.randn(2, 4, 9, 9, dtype=dtype), torch.randn(6, 2, 3, 3, dtype=dtype) / 4
    dy = torch.randn(2, 6, 5, 5, dtype=dtype) / 4
    options: dict[str, Any] = {"auto_pad": "NOTSET", "group": 2, "strides": [2, 2], "pads": pads}
    same(conv_grad, x, w, None, None, dy, **options, **everything(3))


@TYPES
def test_gradients_of_cross_entropy_and_gelu(dtype: torch.dtype) -> None:
    scores, labels = torch.randn(64, 50, dtype=dtype), torch.randint(0, 50, (64,))
    log_prob, dy = torch.log_softmax(scores, 1), torch.ones((), dtype=dtype)
    options: dict[str, Any] = {"ignore_index": 3, "reduction": "mean", "wrt": [0]}
    inputs = (None, labels, None, None, log_prob, dy)
    same(softmax_cross_entropy_loss_grad, *inputs, **options)
    same(gelu_grad, scores, None, scores, approximate="tanh", wrt=[0])


@pytest.mark.filterwarnings("ignore:`torch.jit")  # which torch 2.11 itself uses
def test_uniform_draws_the_bits_that_a_cpu_draws() -> None:
    draw, gpu = torch.tensor([-5, 2**40, 1]), torch.device("cuda")

    def drawn(draw: Tensor) -> Tensor:
        return uniform(random_key(draw), [1000, 7], node=3, device=gpu)

    wanted = torch.from_numpy(uniform_numbers(draw.tolist(), 3, 7000)).reshape(1000, 7)
    for run in (drawn, torch.compile(drawn)):
        torch.testing.assert_close(run(draw.cuda()).cpu(), wanted, atol=0, rtol=0)
