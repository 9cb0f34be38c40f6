"""Gradients that torch has as one kernel, against their bodies in torch and in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch._inductor.utils import run_and_get_code

import onward
from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.dtypes import FLOATS
from onward.passes.composites import inline_calls, is_call
from onward.passes.downgrade import STOCK_OPSET, lower_opset
from onward.passes.ort_workarounds import apply_ort_workarounds
from onward.passes.pipelines import PREPARE, TRAINING
from onward.providers.torch.kernels import (
    composite_activation,
    composite_conv,
    composite_loss,
    composite_norm,
    composite_pool,
)
from onward.providers.torch.kernels.composite_conv import conv_grad
from onward.providers.torch.lower import lower
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.table import HOST, KERNELS
from onward.providers.torch.tensors import to_numpy, to_torch
from tests.gradients import cases_activation, cases_conv, cases_loss, cases_norm, cases_pool
from tests.gradients.case import Case, normal

PROVIDER = TorchProvider("TorchExecutionProvider", torch.device("cpu"))
TABLES = (composite_activation, composite_conv, composite_loss, composite_norm, composite_pool)
WHOLE = {name.removesuffix("Grad") for table in TABLES for _, name in table.kernel}


def _conv(
    note: str, x: tuple[int, ...], w: tuple[int, ...], bias: bool = True, **rest: Any
) -> Case:
    feeds = {"x": normal(*x), "w": normal(*w)}
    if bias:
        feeds["b"] = normal(w[0])

    def build(op: Any, **given: Any) -> Any:
        return op.Conv(*given.values(), **rest)

    return Case("Conv", build, feeds, note, fixed=("w",))


def _loss(note: str, scores: tuple[int, ...], *, weights: bool = False, **rest: Any) -> Case:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, scores[1], (scores[0], *scores[2:]))
    if "ignore_index" in rest:
        labels.reshape(-1)[::3] = rest["ignore_index"]
    feeds: dict[str, Any] = {"scores": normal(*scores), "labels": labels}
    if weights:
        feeds["weights"] = np.abs(normal(scores[1])) + 0.1

    def build(op: Any, **given: Any) -> Any:
        return op.SoftmaxCrossEntropyLoss(*given.values(), **rest)

    return Case("SoftmaxCrossEntropyLoss", build, feeds, note, wrt=("scores",))


MORE = [
    _conv(
        "1-D, strided, padded at the end", (2, 4, 9), (6, 2, 3), group=2, strides=[2], pads=[0, 1]
    ),
    _conv(
        "3-D, dilated", (1, 2, 5, 6, 7), (3, 2, 2, 3, 2), dilations=[2, 1, 2], pads=[1, 0, 1] * 2
    ),
    _conv("depthwise", (2, 6, 8, 8), (6, 1, 3, 3), group=6, pads=[1] * 4, bias=False),
    _conv("a remainder", (1, 2, 8, 7), (2, 2, 3, 3), strides=[3, 2], pads=[1, 0, 0, 2]),
    *(
        _conv(f"{auto}, stride {s}", (1, 2, 7, 8), (3, 2, 3, 2), auto_pad=auto, strides=[s, s])
        for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for s in (1, 2)
    ),
    *(
        _loss(f"{reduction}, {kind}", (6, 5, 3), reduction=reduction, **options)
        for reduction in ("mean", "sum", "none")
        for kind, options in {
            "plain": {},
            "weights": {"weights": True},
            "ignored": {"ignore_index": -1},
            "ignored class": {"ignore_index": 2, "weights": True},
        }.items()
    ),
    _loss("no spatial axes", (7, 11), ignore_index=-100, reduction="mean"),
]
FAMILIES = (cases_activation, cases_conv, cases_loss, cases_norm, cases_pool)
CASES = [case for family in FAMILIES for case in family.CASES if case.operator in WHOLE] + MORE
ids = [f"{case.name}" for case in CASES]


def called(case: Case, dtype: Any, *, dynamic: bool = False) -> ir.Model:
    model = PREPARE(case.model(dtype=dtype, dynamic=dynamic))
    floats = [y for y in model.graph.outputs if y.dtype in FLOATS]
    outputs = {str(y.name): f"d{y.name}" for y in floats}
    extend(model, outputs, case.floats, GRADIENTS, composites=True)
    return TRAINING(model)


def taken(model: ir.Model) -> ir.Model:
    """The calls that torch takes stay."""
    return TRAINING(inline_calls(model, lambda call: PROVIDER.supports(call, model.opset_imports)))


def feeds_of(case: Case, dtype: Any) -> dict[str, Any]:
    """The case's, and cotangents of all outputs."""
    rng = np.random.default_rng(11)
    run = lower(TRAINING(PREPARE(case.model(dtype=np.float64))).graph, KERNELS, HOST)
    results = run.forward(*[to_torch(feed, torch.device("cpu")) for feed in case.feeds.values()])
    feeds = dict(case.feeds)
    for i, result in enumerate(results):
        feeds[f"dy{i}"] = rng.normal(size=tuple(result.shape))
    return {n: feeds[n].astype(dtype) if feeds[n].dtype == np.float64 else feeds[n] for n in feeds}


def run(model: ir.Model, feeds: Mapping[str, Any], forward: Any = None) -> list[Any]:
    if forward is None:
        forward = lower(model.graph, KERNELS, HOST).forward
    inputs = [to_torch(feeds[str(x.name)], torch.device("cpu")) for x in model.graph.inputs]
    with torch.inference_mode():
        return [to_numpy(y, None) for y in forward(*inputs)]


def has_calls(model: ir.Model) -> bool:
    return any(is_call(node) for node in model.graph)


@pytest.mark.sampled("case.operator", last=True)
@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_kernel_matches_its_body(case: Case, dynamic: bool) -> None:
    dynamic = dynamic and case.dynamic
    whole = taken(called(case, np.float64, dynamic=dynamic))
    body = TRAINING(inline_calls(called(case, np.float64, dynamic=dynamic)))
    feeds = feeds_of(case, np.float64)
    for expected, found in zip(run(body, feeds), run(whole, feeds), strict=True):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.sampled("case.operator")
@pytest.mark.parametrize("case", [c for c in CASES if c.ort], ids=[c.name for c in CASES if c.ort])
def test_kernel_matches_the_body_in_onnxruntime(case: Case) -> None:
    whole, body = taken(called(case, np.float32)), TRAINING(inline_calls(called(case, np.float32)))
    feeds = feeds_of(case, np.float32)
    stock = lower_opset(apply_ort_workarounds(body), STOCK_OPSET)
    data = ir.to_proto(stock).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    wanted = session.run(None, {arg.name: feeds[arg.name] for arg in session.get_inputs()})
    for expected, found in zip(wanted, run(whole, feeds), strict=True):
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * scale)


@pytest.mark.sampled("case.operator", last=True)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_half_precision_kernel_matches_its_body(case: Case, dtype: Any) -> None:
    whole, body = taken(called(case, dtype)), TRAINING(inline_calls(called(case, np.float32)))
    if not has_calls(whole):
        return  # torch runs the body, which other tests cover
    feeds = feeds_of(case, dtype)
    rounded = {
        n: f.astype(np.float32) if f.dtype == np.dtype(dtype) else f for n, f in feeds.items()
    }
    step = float(ml_dtypes.finfo(dtype).eps)
    for expected, found in zip(run(body, rounded), run(whole, feeds), strict=True):
        assert found.dtype == np.dtype(dtype)
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        np.testing.assert_allclose(
            found.astype(np.float32), expected, rtol=0, atol=8 * step * scale
        )


@pytest.mark.parametrize("operator", sorted(WHOLE))
def test_every_kernel_has_an_accepted_call(operator: str) -> None:
    models = [taken(called(c, np.float32)) for c in CASES if c.operator == operator]
    assert any(has_calls(model) for model in models)


def network(dtype: Any = np.float32) -> ir.Model:
    """A loss of most of these operators one after the other, for any batch."""
    op = onward.OpBuilder(opset=28)
    shapes = {
        **{"w0": (8, 3, 3, 3), "b0": (8,), "scale0": (8,), "shift0": (8,), "mean": (8,)},
        **{"var": (8,), "w1": (8, 2, 3, 3), "scale1": (8,), "shift1": (8,), "w2": (72, 16)},
        **{"scale2": (16,), "shift2": (16,), "scale3": (16,), "w3": (16, 5)},
    }
    x = op.input("x", dtype, ["batch", 3, 7, 7])
    labels = op.input("labels", np.int64, ["batch"])
    p = {name: op.input(name, dtype, shape) for name, shape in shapes.items()}
    h = op.Conv(x, p["w0"], p["b0"], auto_pad="SAME_UPPER", strides=[2, 2])
    h, _, _ = op.BatchNormalization(
        *(h, p["scale0"], p["shift0"], p["mean"], p["var"]), outputs=3, training_mode=1
    )
    h = op.Conv(op.Swish(h), p["w1"], group=4, pads=[0, 0, 1, 1])
    h = op.HardSwish(op.GroupNormalization(h, p["scale1"], p["shift1"], num_groups=2))
    h = op.Gelu(op.MatMul(op.Flatten(h), p["w2"]), approximate="tanh")
    h = op.LayerNormalization(h, p["scale2"], p["shift2"])
    h = op.Mish(op.RMSNormalization(h, p["scale3"]))
    h = op.MatMul(op.Softmax(h), p["w3"])
    return op.model(loss=op.SoftmaxCrossEntropyLoss(h, labels, ignore_index=1))


def network_gradients() -> ir.Model:
    model = PREPARE(network())
    wrt = [str(x.name) for x in model.graph.inputs if x.name not in ("x", "labels", "mean", "var")]
    extend(model, {"loss": None}, wrt, GRADIENTS, composites=True)
    return TRAINING(model)


def network_feeds(batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    feeds: dict[str, Any] = {}
    for value in network().graph.inputs:
        sizes = [n if isinstance(n, int) else batch for n in value.shape or ()]
        feeds[str(value.name)] = rng.normal(size=sizes).astype(np.float32)
    feeds["var"] = np.abs(feeds["var"]) + 0.5
    feeds["labels"] = rng.integers(0, 5, batch)
    return feeds


def test_network_of_calls_matches_its_bodies() -> None:
    whole, body = taken(network_gradients()), TRAINING(inline_calls(network_gradients()))
    assert sum(is_call(node) for node in whole.graph) == 12
    feeds = network_feeds(4)
    for expected, found in zip(run(body, feeds), run(whole, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize(
    "symbolic", ["the batch", pytest.param("every size", marks=pytest.mark.slow)]
)
def test_a_network_of_calls_is_traced_whole_for_any_batch(symbolic: str) -> None:
    """As Inductor sees it: without a break, in its decompositions; the C++ is left out."""
    whole, body = taken(network_gradients()), TRAINING(inline_calls(network_gradients()))
    module = lower(whole.graph, KERNELS, HOST)
    traced = torch.compile(
        module,
        fullgraph=True,
        dynamic=True if symbolic == "every size" else None,
        backend="aot_eager_decomp_partition",
    )
    names = [str(value.name) for value in whole.graph.inputs]

    def forward(*inputs: torch.Tensor) -> Any:
        for name, tensor in zip(names, inputs, strict=True):
            if name in ("x", "labels") and symbolic == "the batch":
                torch._dynamo.mark_dynamic(tensor, 0)  # an error if it were specialized
        return traced(*inputs)

    for batch in (4, 6):
        feeds = network_feeds(batch)
        for expected, found in zip(run(body, feeds), run(whole, feeds, forward), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.conformance  # it compiles C++ for many seconds
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_inductor_fuses_the_gradient_of_cross_entropy() -> None:
    case = _loss("compiled", (6, 5), ignore_index=1, reduction="mean", weights=True)
    whole = taken(called(case, np.float32))
    body = TRAINING(inline_calls(called(case, np.float32)))
    compiled = torch.compile(lower(whole.graph, KERNELS, HOST), fullgraph=True)
    feeds = feeds_of(case, np.float32)
    given = [to_torch(feeds[str(x.name)], torch.device("cpu")) for x in whole.graph.inputs]
    with torch.inference_mode():
        results, codes = run_and_get_code(compiled, *given)
    assert not any("atomic_add" in code for code in codes)  # which a scatter would be
    for expected, found in zip(run(body, feeds), results, strict=True):
        np.testing.assert_allclose(to_numpy(found, None), expected, rtol=1e-5, atol=1e-6)


def test_unused_gradients_are_not_computed() -> None:
    whole = taken(network_gradients())
    first = [node for node in whole.graph if node.op_type == "ConvGrad"][-1]
    assert [bool(value.name) for value in first.outputs] == [False, True, True]  # x has none
    x, w, dy = torch.randn(1, 3, 5, 5), torch.randn(2, 3, 3, 3), torch.randn(1, 2, 3, 3)
    options: dict[str, Any] = {"auto_pad": "NOTSET", "group": 1, "wrt": [0, 1, 2]}
    results = conv_grad(x, w, None, None, dy, **options, wanted=[False, True])
    assert [result is None for result in results] == [True, False, True]


def test_values_that_only_a_body_reads_leave_memory_early() -> None:
    whole = taken(network_gradients())
    (call,) = (node for node in whole.graph if node.op_type == "GeluGrad")
    assert call.inputs[1] is not None  # its body reads y
    lower(whole.graph, KERNELS, HOST)
    assert call.inputs[0] is not None and call.inputs[1] is None
