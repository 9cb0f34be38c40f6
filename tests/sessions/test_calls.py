"""Models with calls of domain `onward`, saved and opened again, on every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.gradients.model import extend, gradient
from onward.gradients.table import GRADIENTS
from onward.graph.costs.node_costs import model_costs
from onward.graph.files import load, save
from onward.graph.shapes.infer import infer_shapes
from onward.measure.node_support import find_support
from onward.passes.composites import has_calls, inline_calls, is_call
from onward.passes.downgrade import lower_opset
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import INFERENCE, PREPARE, TRAINING, Level
from onward.passes.random_draws import draw_uniforms
from onward.passes.upgrade import newest_opset
from onward.providers.torch import provider as torch_provider


def forward() -> ir.Model:
    """loss(x, labels) of a small network, for any batch."""
    op = onward.OpBuilder(opset=newest_opset())
    x = op.input("x", np.float32, ["batch", 2, 6, 6])
    labels = op.input("labels", np.int64, ["batch"])
    w = op.input("w", np.float32, [4, 2, 3, 3])
    scale, shift = op.input("scale", np.float32, [16]), op.input("shift", np.float32, [16])
    h = op.Gelu(op.Conv(x, w, strides=[2, 2]))
    h = op.LayerNormalization(op.Flatten(h), scale, shift, axis=-1)
    return op.model(loss=op.SoftmaxCrossEntropyLoss(h, labels))


WRT = ["w", "scale", "shift"]


def with_calls() -> ir.Model:
    model = PREPARE(forward())
    extend(model, {"loss": None}, WRT, GRADIENTS, composites=True)
    return TRAINING(model)


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 2, 6, 6), "w": (4, 2, 3, 3), "scale": (16,), "shift": (16,)}
    given: dict[str, Any] = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    given["labels"] = np.array([1, 15, 7])
    return given


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    session = onward.InferenceSession(gradient(forward(), "loss", WRT))
    names = [arg.name for arg in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds()), strict=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(with_calls(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize(
    "providers",
    [
        None,
        ["CPUExecutionProvider"],
        ["TorchExecutionProvider"],
        ["ReferenceExecutionProvider"],
        ["OpenVINOExecutionProvider"],
        ["CPUExecutionProvider", "TorchExecutionProvider"],
        ["ReferenceExecutionProvider", "TorchExecutionProvider"],
    ],
    ids=lambda names: "default" if names is None else " ".join(names),
)
def test_every_engine_runs_a_saved_model_with_calls(
    path: Path, providers: list[str] | None, expected: dict[str, Any]
) -> None:
    session = onward.InferenceSession(path, providers=providers)
    names = [arg.name for arg in session.get_outputs()]
    for name, found in zip(names, session.run(names, feeds()), strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_torch_runs_calls_without_inlining(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[str] = []
    plain = torch_provider.lower

    def noting(graph: ir.Graph, *rest: Any) -> Any:
        lowered.extend(node.op_type for node in graph if is_call(node))
        return plain(graph, *rest)

    monkeypatch.setattr(torch_provider, "lower", noting)
    onward.InferenceSession(path, providers=["TorchExecutionProvider"])
    grads = {"SoftmaxCrossEntropyLossGrad", "LayerNormalizationGrad", "GeluGrad", "ConvGrad"}
    assert set(lowered) == grads


def test_preparing_a_loaded_model_keeps_its_calls(path: Path) -> None:
    model = PREPARE(load(path))
    assert has_calls(model) and any(is_call(node) for node in model.graph)
    optimized = INFERENCE[Level.ALL](model)
    assert any(is_call(node) for node in optimized.graph)
    assert not any(is_call(node) for node in inline_calls(optimized).graph)


def test_bodies_are_lowered_with_the_model_and_upgraded_when_they_are_inlined(path: Path) -> None:
    model = lower_opset(load(path), 24)
    assert model.opset_imports[""] <= 24 and (model.ir_version or 0) >= 10
    assert {f.opset_imports[""] for f in model.functions.values()} == {model.opset_imports[""]}
    prepared = PREPARE(model)
    assert any(is_call(node) for node in prepared.graph)
    inlined = inline_calls(prepared)
    assert not any(is_call(node) for node in inlined.graph)
    assert inlined.opset_imports[""] == newest_opset()
    assert all(node.version is None for node in inlined.graph)


@pytest.mark.parametrize("providers", [None, ["TorchExecutionProvider"]], ids=["default", "torch"])
def test_a_model_with_calls_in_an_older_opset_runs(
    path: Path, providers: list[str] | None, expected: dict[str, Any]
) -> None:
    session = onward.InferenceSession(lower_opset(load(path), 24), providers=providers)
    for name, found in zip(expected, session.run(list(expected), feeds()), strict=True):
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_functions_of_the_domain_that_call_others_are_inlined() -> None:
    model = with_calls()
    key, function = next(iter(model.functions.items()))
    inner = ir.Function(
        "mine",
        "Copy",
        graph=ir.Graph([a := ir.val("a")], [], nodes=[n := ir.node("Identity", [a])]),
        attributes=(),
    )
    inner.graph.outputs.append(n.outputs[0])
    n.outputs[0].name = "b"
    inner.opset_imports[""] = newest_opset()
    model.functions[inner.identifier()] = inner
    model.opset_imports["mine"] = function.opset_imports["mine"] = 1
    last = function.outputs[0]
    copy = ir.Node("mine", "Copy", [last], num_outputs=1)
    copy.outputs[0].name = "copied"
    function.append(copy)
    function.outputs[0] = copy.outputs[0]
    prepared = PREPARE(model)
    assert key not in prepared.functions and inner.identifier() not in prepared.functions
    assert any(is_call(node) for node in prepared.graph)


def test_shapes_are_inferred_around_calls() -> None:
    model = with_calls()
    values = {str(v.name): v for node in model.graph for v in node.outputs if v.name}
    known = {name: (value.dtype, list(value.shape or ())) for name, value in values.items()}
    infer_shapes(model)
    assert {n: (v.dtype, list(v.shape or ())) for n, v in values.items()} == known
    for call in filter(is_call, model.graph):
        for value in call.outputs:
            value.shape = None if value.name else value.shape
    infer_shapes(model)  # then ONNX looks into the bodies
    for call in filter(is_call, model.graph):
        assert all(value.shape is not None for value in call.outputs if value.name)


def test_calls_cost_what_their_bodies_cost() -> None:
    model = with_calls()
    whole = model_costs(model, {"batch": 3})
    assert whole.operators["onward::ConvGrad"].flops > whole.operators["Conv"].flops > 0
    bodies = (node for f in model.functions.values() for node in f.graph)
    assert not any(node.metadata_props for node in bodies)  # the model is as it was
    parts = model_costs(drop_unused(inline_calls(with_calls())), {"batch": 3})
    assert sum(n.cost.flops for n in whole.nodes) == sum(n.cost.flops for n in parts.nodes) > 0


def test_support_counts_calls_only_where_they_are_not_inlined() -> None:
    support = find_support(with_calls(), ["TorchExecutionProvider"])
    assert {place.provider for place in support.division} == {"TorchExecutionProvider"}
    assert any(place.operator.endswith("ConvGrad") for place in support.division)
    support = find_support(with_calls(), ["CPUExecutionProvider"])
    assert not any("Grad" in place.operator for place in support.division)


def test_a_gradient_of_a_model_with_calls_is_that_of_its_operators() -> None:
    plain = PREPARE(forward())
    extend(plain, {"loss": None}, WRT, GRADIENTS)
    for model in (TRAINING(plain), with_calls()):
        second = gradient(model, {"w_grad": "dw"}, ["w"])
        assert not any(is_call(node) for node in second.graph)
        results = onward.InferenceSession(second).run(
            ["w_grad_grad"], {**feeds(), "dw": np.ones((4, 2, 3, 3), np.float32)}
        )
        if model is plain:
            first = results[0]
    np.testing.assert_allclose(results[0], first, rtol=1e-4, atol=1e-5)


def dropped() -> ir.Model:
    """A Dropout as calls that draw; their functions have attributes and are called twice."""
    op = onward.OpBuilder(opset=newest_opset())
    x = op.input("x", np.float32, ["batch", 64])
    for _ in range(2):
        x = op.Dropout(x, np.float32(0.5), np.array(True))
    model = PREPARE(op.model(y=x))
    draw_uniforms(model)
    return model


@pytest.mark.parametrize(
    "providers", [["CPUExecutionProvider"], ["TorchExecutionProvider"]], ids=["cpu", "torch"]
)
def test_calls_whose_functions_have_attributes_run(providers: list[str], tmp_path: Path) -> None:
    save(dropped(), tmp_path / "dropped.onnx")
    session = onward.InferenceSession(tmp_path / "dropped.onnx", providers=providers)
    given = {"x": np.ones((100, 64), np.float32), "onward.draw": np.array([1, 2, 0])}
    (y,) = session.run(["y"], given)
    assert set(np.unique(y)) == {0.0, 4.0} and 0.2 < (y > 0).mean() < 0.3
    (expected,) = onward.InferenceSession(inline_calls(dropped())).run(["y"], given)
    np.testing.assert_array_equal(y, expected)
