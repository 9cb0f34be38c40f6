"""Attention and its gradient by torch's fused kernels: which calls they run, and their results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.passes.composites import is_call
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.recognize_composites import recognise_composites
from onward.providers.torch.fused_attention import fuse_attention, has_fused_attention
from onward.providers.torch.kernels.attention_grad import attention_backward, attention_forward
from tests.passes.attention_models import WRITERS, layer
from tests.passes.attention_models import feeds as attention_feeds
from tests.providers.torch.attention_case import NAMES, fused, inlined, tensors, training_model

CONTRIB = "com.microsoft"
CPU = torch.device("cpu")
SEEN = np.random.default_rng(3).random((2, 1, 1, 7)) > 0.3
BLIND = SEEN.copy()
BLIND[1] = False  # a batch whose queries see nothing
ADDED = np.where(SEEN, 0.5, -np.inf)
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
FOUR = ((2, 4, 7, 6), (2, 4, 7, 6))
GROUPED = ((2, 4, 7, 6), (2, 2, 7, 6))
THREE = ((2, 7, 24), (2, 7, 12))
LONGER = ((2, 4, 5, 6), (2, 4, 7, 6))

CASES: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
    "plain": (tensors(*FOUR), {}),
    "causal": (tensors(*FOUR), {"is_causal": 1}),
    "causal, more keys": (tensors(*LONGER), {"is_causal": 1}),
    "scaled": (tensors(*FOUR), {"scale": 0.3}),
    "other values": (tensors(*FOUR, (2, 4, 7, 3)), {}),
    "grouped": (tensors(*GROUPED), {"is_causal": 1}),
    "three axes": (tensors(*THREE), {"is_causal": 1, **HEADS}),
    "padding": (tensors(*FOUR, mask=SEEN), {}),
    "padding, blind": (tensors(*FOUR, mask=BLIND), {}),
    "padding, causal": (tensors(*FOUR, mask=BLIND), {"is_causal": 1}),
    "padding, grouped": (tensors(*GROUPED, mask=SEEN), {}),
    "shorter mask": (tensors(*FOUR, mask=SEEN[..., :5]), {}),
    "added": (tensors(*FOUR, mask=ADDED), {}),
    "double": (tensors(*FOUR, dtype=torch.float64), {}),
    "half": (tensors(*FOUR, dtype=torch.bfloat16), {}),
    "empty": (tensors((0, 4, 7, 6), (0, 4, 7, 6)), {}),
    "no keys": (tensors((2, 4, 7, 6), (2, 4, 0, 6)), {}),
}


def names(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("name", CASES)
def test_fused_attention_matches_the_body(name: str) -> None:
    feeds, attributes = CASES[name]
    model = training_model(feeds, **attributes)
    tolerance = 2e-2 if feeds["q"].dtype == torch.bfloat16 else 1e-5
    got, wanted = fused(model)(*feeds.values()), inlined(model)(*feeds.values())
    results = dict(zip(NAMES, got, strict=True)), dict(zip(NAMES, wanted, strict=True))
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "backend"),
    [("three axes", "aot_eager"), ("padding, grouped", "aot_eager"), ("causal", "inductor")],
)
def test_fused_attention_compiles_as_one_graph(name: str, backend: str) -> None:
    feeds, attributes = CASES[name]
    module = fused(training_model(feeds, **attributes))
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=backend)
    with torch.inference_mode():
        for a, b in zip(compiled(*feeds.values()), module(*feeds.values()), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_written_out_attention_runs_fused(name: str, groups: int) -> None:
    parameters = ["wq", "wk", "wv"]
    model = recognise_composites(PREPARE(layer(WRITERS[name], groups=groups)), parameters)
    extend(model, {"y": "dy"}, parameters, GRADIENTS, composites=True)
    model = TRAINING(model)
    x, *others = (torch.from_numpy(feed) for feed in attention_feeds().values())
    given = [x, *others, torch.randn_like(x)]
    got, wanted = fused(model)(*given), inlined(model)(*given)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    fuse_attention(model, CPU)
    assert {"AttentionForward", "AttentionBackward"} <= {*names(model)}
    assert not {"Softmax", "LessOrEqual"} & {*names(model)}, "what only the bodies have read"


def test_forward_call_without_gradient_is_the_standard_operator() -> None:
    model = recognise_composites(PREPARE(layer(WRITERS["eager"])))
    (call,) = filter(is_call, model.graph)
    assert has_fused_attention(call, CPU)
    given = [torch.from_numpy(feed) for feed in attention_feeds().values()]
    torch.testing.assert_close(fused(model)(*given), inlined(model)(*given), rtol=1e-4, atol=1e-5)
    fuse_attention(model, CPU)
    assert not any(map(is_call, model.graph)) and "Softmax" not in names(model)


def test_gradient_reads_outputs_of_its_forward_node() -> None:
    feeds, attributes = CASES["causal"]
    model = training_model(feeds, **attributes)
    fuse_attention(model, CPU)
    assert names(model) == ["AttentionForward", "AttentionBackward"]
    forward, backward = model.graph
    assert list(backward.inputs[5:]) == list(forward.outputs)
    assert [value.name for value in model.graph.outputs] == ["y", "q_grad", "k_grad", "v_grad"]
    assert not model.functions


def test_gradient_without_a_forward_node_recomputes_it() -> None:
    feeds, attributes = CASES["causal"]
    model = training_model(feeds, **attributes)
    expected = inlined(model)(*feeds.values())
    (forward,) = (node for node in model.graph if node.op_type == "Attention")
    y = ir.val("y_given", type=forward.outputs[0].type, shape=forward.outputs[0].shape)
    forward.outputs[0].replace_all_uses_with(y, replace_graph_outputs=True)
    model.graph.remove(forward, safe=True)
    model.graph.inputs.append(y)
    model.graph.outputs.pop(0)
    got = fused(model)(*feeds.values(), expected[0])
    for a, b in zip(got, expected[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_contrib_attention_runs_fused() -> None:
    op = OpBuilder()
    q, k, v = (op.input(name, "float32", ("batch", "length", 24)) for name in "qkv")
    seen = op.input("seen", "int32", ("batch", "length"))
    y = op.node("MultiHeadAttention", [q, k, v, None, seen], {"num_heads": 4}, domain=CONTRIB)
    assert isinstance(y, ir.Value)
    y.type, y.shape = q.type, q.shape
    model = PREPARE(op.model(y=y))
    extend(model, {"y": "dy"}, ["q", "k", "v"], GRADIENTS, composites=True)
    model = TRAINING(model)
    hidden = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.int32)
    feeds = [*(torch.randn(2, 5, 24) for _ in range(3)), hidden, torch.randn(2, 5, 24)]
    got, wanted = fused(model)(*feeds), inlined(model)(*feeds)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    fuse_attention(model, CPU)
    assert names(model)[-2:] == ["AttentionForward", "AttentionBackward"]


@pytest.mark.parametrize(
    "attributes", [{"softcap": 2.0}, {"softmax_precision": int(ir.DataType.DOUBLE)}]
)
def test_unsupported_attention_stays_a_call(attributes: dict[str, Any]) -> None:
    model = training_model(CASES["plain"][0], **attributes)
    (call,) = filter(is_call, model.graph)
    assert not has_fused_attention(call, CPU)
    fuse_attention(model, CPU)
    assert "AttentionGrad" in names(model)


def test_gradient_of_the_mask_stays_a_call() -> None:
    feeds = CASES["added"][0]
    model = training_model(feeds)
    (call,) = filter(is_call, model.graph)
    assert has_fused_attention(call, CPU)
    (place,) = (i for i, wrt in enumerate(call.attributes["wrt"].value) if wrt == 3)
    call.resize_outputs(place + 1)  # it was dropped, being unused
    call.outputs[place].name = "mask_grad"
    model.graph.outputs.append(call.outputs[place])
    assert not has_fused_attention(call, CPU)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn"])
def test_cuda_kernel_by_type_and_mask(backend: str, name: str) -> None:
    """Without a GPU: torch's own functions for shapes check signatures, types and sizes."""
    feeds, attributes = CASES[name]
    fake = {
        n: torch.empty(t.shape, dtype=t.dtype if n == "mask" else torch.bfloat16, device="meta")
        for n, t in feeds.items()
    }
    if "mask" in feeds and not (backend == "cudnn" and feeds["mask"].dtype == torch.bool):
        backend = "efficient"
    given = [fake.get(n) for n in ("q", "k", "v", "mask")]
    options = {"backend": backend, "is_causal": 0} | attributes
    y, *kept = attention_forward(*given, **options)  # type: ignore[arg-type]
    assert y is not None and y.shape == fake["dy"].shape and y.dtype == torch.bfloat16
    gradients = attention_backward(fake["dy"], *given, y, *kept, **options)  # type: ignore[arg-type]
    for x, dx in zip(given[:3], gradients, strict=True):
        assert x is not None and x.shape == dx.shape and x.dtype == dx.dtype
