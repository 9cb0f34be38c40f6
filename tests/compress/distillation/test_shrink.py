"""shrink: fewer repeated layers, the first and the last kept, outputs of the same shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward.compress import shrink
from onward.compress.distillation.repeated_layers import find_chains
from onward.errors import OptionError, UnsupportedModel
from onward.graph.builder import OpBuilder
from onward.graph.random_feeds import random_feeds


def residual(
    layers: int, *, constants: bool = False, mask: bool = True, outputs: bool = False
) -> ir.Model:
    """x + relu(x w_i) m, with a weight and a number of its own in each layer."""
    op, rng = OpBuilder(), np.random.default_rng(0)
    x = op.input("x", "float32", ["n", 4])
    m = op.Sigmoid(op.input("m", "float32", ["n", 1])) if mask else None
    found = {}
    for place in range(layers):
        array = rng.normal(size=(4, 4)).astype(np.float32)
        fixed = ir.tensor(array)
        w = op.Constant(value=fixed) if constants else op.initializer(f"w{place}", array)
        y = op.Relu(op.MatMul(x, w))
        x = op.Add(x, op.Mul(y, m) if m is not None else y)
        found[f"hidden{place}"] = x
    head = op.MatMul(x, op.initializer("head", rng.normal(size=(4, 2)).astype(np.float32)))
    return op.model(y=head, **(found if outputs else {}))


def run(model: ir.Model, **sizes: int) -> list[Any]:
    session = onward.InferenceSession(model)
    return session.run(None, random_feeds(session.get_inputs(), sizes, 0))


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize(
    ("kept", "left"), [(1, [4]), (2, [0, 4]), (3, [0, 2, 4]), (5, [0, 1, 2, 3, 4])]
)
def test_evenly_spaced_layers_are_kept(kept: int, left: list[int], constants: bool) -> None:
    model = residual(5, constants=constants)
    student = shrink(model, layers=kept)
    assert len(model.graph) > len(student.graph) or kept == 5  # the teacher is not changed
    if not constants:
        assert [n for n in student.graph.initializers if n != "head"] == [f"w{p}" for p in left]
    feeds = random_feeds(onward.InferenceSession(model).get_inputs(), {"n": 3}, 0)
    weights = np.random.default_rng(0).normal(size=(5, 4, 4)).astype(np.float32)
    x, m = feeds["x"], 1 / (1 + np.exp(-feeds["m"]))
    for place in left:
        x = x + np.maximum(x @ weights[place], 0) * m
    rng = np.random.default_rng(0)
    rng.normal(size=(5, 4, 4))
    expected = x @ rng.normal(size=(4, 2)).astype(np.float32)
    found = onward.InferenceSession(student).run(None, feeds)[0]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_outputs_of_layers_that_are_left_out_are_gone() -> None:
    student = shrink(residual(4, outputs=True), layers=2)
    assert [v.name for v in student.graph.outputs] == ["y", "hidden0", "hidden3"]
    assert len(run(student)) == 3


@pytest.mark.parametrize(
    ("name", "options", "layers"),
    [
        ("gpt2", {"layers": 4, "width": 16, "heads": 2, "context": 8}, 4),
        ("bert", {"layers": 3, "width": 16, "heads": 2, "vocabulary": 20, "context": 8}, 3),
        ("transformer", {"layers": 4}, 4),
        ("vit", {"layers": 4, "width": 16, "heads": 2}, 4),
    ],
)
def test_transformers(name: str, options: dict[str, Any], layers: int) -> None:
    model = onward.new_model(name, **options)
    (chain,) = find_chains(model.graph)
    assert chain.layers == layers
    student = shrink(model, layers=2)
    assert [y.shape for y in run(student)] == [y.shape for y in run(model)]
    assert len(student.graph.initializers) < len(model.graph.initializers)
    assert find_chains(student.graph)[0].layers == 2


def test_stages_keep_a_share_each() -> None:
    model = onward.new_model("mobilenet")
    chains = find_chains(model.graph)
    assert len(chains) > 1
    student = shrink(model, layers=len(chains))
    assert [y.shape for y in run(student)] == [y.shape for y in run(model)]


def test_model_without_repeated_layers_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no repeated layers were found"):
        shrink(onward.new_model("mlp", features=4, hidden=(8,), classes=2), layers=1)


@pytest.mark.parametrize("layers", [0, 6, -1])
def test_number_of_layers_is_checked(layers: int) -> None:
    with pytest.raises(OptionError, match=f"layers must be from 1 to 5, .*, not {layers}"):
        shrink(residual(5), layers=layers)


def test_layers_that_are_read_inside_are_not_left_out() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ["n", 4])
    inner = []
    for place in range(3):
        w = op.initializer(f"w{place}", np.eye(4, dtype=np.float32))
        inner.append(op.Relu(op.MatMul(x, w)))
        x = op.Add(x, inner[-1])
    model = op.model(y=op.Concat(x, *inner, axis=1))
    with pytest.raises(UnsupportedModel):
        shrink(model, layers=1)


def test_weights_of_equal_content_that_an_exporter_has_written_once() -> None:
    """The first layer reads the weight, the others read it through Identity."""
    op = OpBuilder()
    x = op.input("x", "float32", ["n", 4])
    weight = op.initializer("w", np.full((4, 4), 0.5, np.float32))
    for place in range(4):
        x = op.Add(x, op.Relu(op.MatMul(x, op.Identity(weight) if place else weight)))
    model = op.model(y=op.Mul(x, 2.0))
    (chain,) = find_chains(model.graph)
    assert chain.layers == 4
    student = shrink(model, layers=1)
    x = np.ones((1, 4), np.float32)
    assert onward.InferenceSession(student).run(None, {"x": x})[0] == pytest.approx(6 * x)
