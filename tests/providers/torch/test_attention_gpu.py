"""Attention and its gradient on a GPU: every fused kernel against the body of the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from onward.providers.torch import fused_attention
from tests.providers.torch.attention_case import NAMES, fused, inlined, tensors, training_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

HALVES = (torch.float16, torch.bfloat16)
LENGTH = 77  # not a multiple of 8: masks are padded
SEEN = np.random.default_rng(3).random((2, 1, 1, LENGTH)) > 0.3
BLIND = SEEN.copy()
BLIND[1] = False  # a batch whose queries see nothing
BLIND[0, ..., :9] = False  # and the first queries, under a causal mask
FULL = np.random.default_rng(4).random((2, 1, LENGTH, LENGTH)) > 0.3
ADDED = np.where(SEEN, 0.5, -np.inf)
FOUR = ((2, 4, LENGTH, 64), (2, 4, LENGTH, 64))
GROUPED = ((2, 4, LENGTH, 64), (2, 2, LENGTH, 64))
THREE = ((2, LENGTH, 256), (2, LENGTH, 128))
SMALL = ((2, 4, LENGTH, 20), (2, 4, LENGTH, 20))
LONGER = ((2, 4, 33, 64), (2, 4, LENGTH, 64))
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}

UNMASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (FOUR, {}),
    "causal": (FOUR, {"is_causal": 1}),
    "causal, more keys": (LONGER, {"is_causal": 1}),
    "scaled": (FOUR, {"scale": 0.3}),
    "padded heads": (SMALL, {"is_causal": 1}),
    "grouped": (GROUPED, {"is_causal": 1}),
    "three axes": (THREE, {"is_causal": 1, **HEADS}),
}
MASKED: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "padding": (FOUR, SEEN, {}),
    "padding, blind": (FOUR, BLIND, {}),
    "padding, causal": (FOUR, SEEN, {"is_causal": 1}),
    "padding, causal, blind": (FOUR, BLIND, {"is_causal": 1}),
    "padding, grouped": (GROUPED, SEEN, {}),
    "padding, three axes": (THREE, SEEN, HEADS),
    "of each pair": (FOUR, FULL, {}),
    "added": (FOUR, ADDED, {}),
    "shorter": (FOUR, SEEN[..., :40], {}),
}


def check(model: ir.Model, feeds: dict[str, torch.Tensor], *, compiled: bool = False) -> None:
    """The fused kernels give what the body gives in float32, as near as their type allows."""
    run: Any = fused(model, "cuda")
    if compiled:
        run = torch.compile(run, fullgraph=True)
    exact = {n: t if t.dtype == torch.bool else t.float() for n, t in feeds.items()}
    options = {a.name: a.value for a in _forward(model).attributes.values()}
    with torch.inference_mode():
        got = run(*feeds.values())
        wanted = inlined(training_model(exact, **options), "cuda")(*exact.values())
    for name, a, b in zip(NAMES, got, wanted, strict=True):
        error = float((a.float() - b).abs().max() / b.abs().max().clamp(min=1e-6))
        limit = 2e-2 if a.dtype == torch.bfloat16 else 4e-3
        assert error < limit, f"{name} is {error:.2e} off"


def _forward(model: ir.Model) -> ir.Node:
    (node,) = (node for node in model.graph if node.op_type == "Attention")
    return node


def force(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(fused_attention, "_choose", lambda *tensors, **options: backend)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", UNMASKED)
@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_every_kernel_matches_the_body(
    backend: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, attributes = UNMASKED[name]
    force(monkeypatch, backend)
    feeds = tensors(*shapes, dtype=dtype, device="cuda")
    check(training_model(feeds, **attributes), feeds)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("name", MASKED)
def test_masks_match_the_body(name: str, dtype: torch.dtype) -> None:
    shapes, mask, attributes = MASKED[name]
    feeds = tensors(*shapes, mask=mask, dtype=dtype, device="cuda")
    check(training_model(feeds, **attributes), feeds)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["padding", "padding, blind", "padding, three axes"])
@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_mask_of_one_row_matches_the_body(
    backend: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, mask, attributes = MASKED[name]
    force(monkeypatch, backend)
    feeds = tensors(*shapes, mask=mask, dtype=dtype, device="cuda")
    check(training_model(feeds, **attributes), feeds)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("name", UNMASKED)
def test_the_chosen_kernel_matches_the_body(name: str, dtype: torch.dtype) -> None:
    shapes, attributes = UNMASKED[name]
    feeds = tensors(*shapes, dtype=dtype, device="cuda")
    check(training_model(feeds, **attributes), feeds)


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("name", ["causal", "grouped", "padded heads", "three axes"])
@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_every_kernel_compiles(
    backend: str, name: str, fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, attributes = UNMASKED[name]
    force(monkeypatch, backend)
    feeds = tensors(*shapes, dtype=torch.bfloat16, device="cuda")
    check(training_model(feeds, fixed=fixed, **attributes), feeds, compiled=True)


@pytest.mark.parametrize("name", ["padding", "padding, causal, blind", "padding, three axes"])
def test_masks_compile(name: str) -> None:
    shapes, mask, attributes = MASKED[name]
    feeds = tensors(*shapes, mask=mask, dtype=torch.bfloat16, device="cuda")
    check(training_model(feeds, **attributes), feeds, compiled=True)


def test_kernel_is_torchs_choice() -> None:
    feeds = tensors(*FOUR, dtype=torch.bfloat16, device="cuda")
    model = training_model(feeds, is_causal=1)
    fused_attention.fuse_attention(model, torch.device("cuda"))
    (node,) = (node for node in model.graph if node.op_type == "AttentionForward")
    q, k, v = (feeds[name].requires_grad_() for name in "qkv")
    choice = torch._fused_sdp_choice(q, k, v, None, 0.0, True)
    assert fused_attention._CHOICES[choice] == node.attributes["backend"].value
