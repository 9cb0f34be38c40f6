"""Random nodes as functions of (seed, step, node), and those functions fed, before or after
differentiation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import onward
from onward.errors import OptionError
from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.graph.files import load
from onward.passes.fed_uniforms import feed_uniforms, take_noise
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.random_draws import DRAW, Draws, draw_uniforms, left_random
from onward.passes.random_functions import calls
from tests.passes.running import run_ort
from tests.passes.uniform_numbers import uniform_numbers

TRUE, SEED = np.array(True), [3, 14, 1]
Array = np.ndarray[Any, Any]


def real(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def built(build: Any, shape: Any = (6, 5), dtype: str = "float32") -> ir.Model:
    op = OpBuilder()
    made = build(op, op.input("x", dtype, shape))
    outputs = made if isinstance(made, tuple) else (made,)
    return PREPARE(op.model(**{f"y{i}": y for i, y in enumerate(outputs)}))


def drawn(build: Any, shape: Any = (6, 5), dtype: str = "float32") -> tuple[ir.Model, Draws]:
    model = built(build, shape, dtype)
    draws = draw_uniforms(model)
    assert draws is not None
    assert model.graph.inputs[-1].name == DRAW
    return model, draws


def run(model: ir.Model, x: Array, draw: list[int] = SEED) -> list[Any]:
    session = onward.InferenceSession(model.clone(), providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, {"x": x, DRAW: np.array(draw)})
    return results


def differentiate(model: ir.Model, wrt: str) -> None:
    extend(model, {"y0": "dy"}, [wrt], GRADIENTS)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def dropped(op: OpBuilder, x: Any) -> Any:
    return op.Dropout(x, np.float32(0.3), TRUE)


def every_kind(op: OpBuilder, x: Any) -> Any:
    """One of each, as far as gradients go through them."""
    y = op.Dropout(op.Mul(x, x), np.float32(0.3), TRUE)
    y = op.Mul(y, op.Add(op.RandomNormalLike(y), op.Bernoulli(op.Sigmoid(x))))
    y = op.Add(y, op.RandomUniformLike(y, low=-1.0, high=2.0))
    classes = op.CastLike(op.Multinomial(y, sample_size=3), x)
    y, mask = op.Dropout(op.Mul(y, op.ReduceSum(classes, keepdims=0)), None, TRUE, outputs=2)
    return op.Mul(y, op.CastLike(mask, x))


# -- draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 5), ("n", 5), (None, None)], ids=str)
def test_dropout_is_a_function_of_seed_step_and_node(shape: Any) -> None:
    model, _ = drawn(lambda op, x: (dropped(op, x), dropped(op, op.Relu(x))), shape)
    x = np.ones((6, 5), np.float32)
    for draw in ([3, 14, 1], [3, 15, 1], [4, 14, 1], [3, 14, 0]):
        for node, y in enumerate(run(model, x, draw)):
            kept = uniform_numbers(draw, node, 30).reshape(6, 5) >= np.float32(0.3)
            np.testing.assert_array_equal(y, kept * np.float32(1 / 0.7))


def test_dropout_is_a_mask_of_one_byte_and_its_product() -> None:
    model, _ = drawn(dropped)
    assert operators(model) == ["RandomKey", "DropoutMask", "MaskedScale"]
    (mask,) = calls(model.graph, "DropoutMask")
    assert mask.outputs[0].dtype == ir.DataType.BOOL
    assert mask.outputs[0].shape == ir.Shape((6, 5))


def test_the_mask_is_an_output_where_it_was_one() -> None:
    model, _ = drawn(lambda op, x: op.Dropout(x, np.float32(0.3), TRUE, outputs=2))
    x = real(6, 5)
    y, mask = run(model, x)
    np.testing.assert_array_equal(mask, uniform_numbers(SEED, 0, 30).reshape(6, 5) >= 0.3)
    np.testing.assert_allclose(y, np.where(mask, x / 0.7, 0), rtol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_ratio_and_mode_may_be_fed(training: bool) -> None:
    op = OpBuilder()
    x = op.input("x", "float32", ("n",))
    fed = op.input("ratio", "float32", ()), op.input("training", "bool", ())
    model = PREPARE(op.model(y=op.Dropout(x, *fed)))
    assert draw_uniforms(model) is not None
    feeds = {"x": np.ones(99, np.float32), "ratio": np.float32(0.25), DRAW: np.array(SEED)}
    session = onward.InferenceSession(model, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {**feeds, "training": np.array(training)})
    wanted = (uniform_numbers(SEED, 0, 99) >= 0.25) / np.float32(0.75) if training else feeds["x"]
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_normal_numbers_come_from_two_draws() -> None:
    model, draws = drawn(lambda op, x: op.RandomNormalLike(x), ("n",))
    assert len(draws.calls) == 2
    (y,) = run(model, np.zeros(9, np.float32))
    u, v = (uniform_numbers(SEED, node, 5).astype(np.float64) for node in range(2))
    radius = np.sqrt(-2 * np.log(1 - u))
    pairs = [radius * np.cos(2 * math.pi * v), radius * np.sin(2 * math.pi * v)]
    np.testing.assert_allclose(y, np.concatenate(pairs)[:9], rtol=1e-4, atol=1e-5)


def test_random_uniform_takes_its_shape_from_the_attribute() -> None:
    def build(op: OpBuilder, x: Any) -> Any:
        return op.Add(op.RandomUniform(shape=[2, 1], low=1.0, high=3.0), x)

    (y,) = run(drawn(build, (3,))[0], np.zeros(3, np.float32))
    wanted = 1 + 2 * uniform_numbers(SEED, 0, 2).reshape(2, 1) + np.zeros(3)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_model_without_random_nodes_draws_nothing() -> None:
    model = built(lambda op, x: op.Dropout(x, np.float32(0.5)))
    assert draw_uniforms(model) is None
    assert feed_uniforms(model, None) is None
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert not model.functions


def test_an_input_name_that_is_taken_is_refused() -> None:
    model, _ = drawn(dropped)
    with pytest.raises(
        OptionError, match=r"'onward.draw' already: its draws need another name\npass one"
    ):
        draw_uniforms(model)
    with pytest.raises(OptionError, match=r"has a value 'x' already: its noise needs another name"):
        take_noise(built(dropped), "x")


def test_random_nodes_in_branches_stay_and_are_named() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21]>
        g (bool c, float[n] x) => (float[n] y)
        <float r = {0.5}, bool t = {1}>
        {
            y = If (c) <
                then_branch = g1 () => (float[n] a) { a = Neg(x) },
                else_branch = g2 () => (float[n] d) { [inner] d = Dropout(x, r, t) }
            >
        }"""
    model = PREPARE(load(onnx.parser.parse_model(text)))
    assert draw_uniforms(model) is None
    assert left_random(model) == ["inner"]


# -- gradients -----------------------------------------------------------------------------------


def test_the_gradient_of_dropout_reads_its_mask() -> None:
    model, _ = drawn(dropped)
    differentiate(model, "x")
    forward, backward = calls(model.graph, "MaskedScale")
    assert forward.inputs[1:] == backward.inputs[1:]
    assert operators(TRAINING(model)).count("DropoutMask") == 1


def test_a_drawn_model_is_differentiated_like_any_other() -> None:
    model = onward.gradient(drawn(dropped)[0], {"y0": "dy"}, ["x"])
    feeds = {"x": real(6, 5), "dy": real(6, 5), DRAW: np.array(SEED)}
    y, dx = onward.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert (y == 0).any()
    np.testing.assert_array_equal(dx, y)  # x = dy


@pytest.mark.parametrize("shape", [(6, 5), ("n", 5)], ids=str)
def test_gradients_match_if_fed_before_or_after(shape: Any) -> None:
    model, draws = drawn(every_kind, shape, "float64")
    differentiate(model, "x")
    assert feed_uniforms(model, draws) is not None
    early = built(every_kind, shape, "float64")
    assert take_noise(early) is not None
    early = onward.gradient(early, {"y0": "dy"}, ["x"])
    x = real(6, 5).astype(np.float64)
    feeds = {"x": x, "dy": x, "noise": np.random.default_rng(0).random(168, np.float32)}
    wanted = onward.InferenceSession(early).run(None, feeds)
    for want, got in zip(wanted, onward.InferenceSession(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(got, want)


# -- fed -----------------------------------------------------------------------------------------


def noise_for(draws: Draws, counts: list[int]) -> Array:
    """The vector with the numbers that every call would draw."""
    assert len(draws.calls) == len(counts)
    return np.concatenate([uniform_numbers(SEED, node, n) for node, n in enumerate(counts)])


@pytest.mark.parametrize("shape", [(6, 5), ("n", 5), (None, None)], ids=str)
@pytest.mark.parametrize("tidy", [False, True])
def test_fed_numbers_match_the_functions(shape: Any, tidy: bool) -> None:
    def build(op: OpBuilder, x: Any) -> Any:
        y = dropped(op, x)
        classes = op.Multinomial(x, sample_size=4)
        return y, op.RandomNormalLike(y), op.Bernoulli(op.Sigmoid(x)), classes

    model, draws = drawn(build, shape)
    x = real(6, 5)
    wanted = run(model, x)
    if tidy:
        model = TRAINING(model)
    size = feed_uniforms(model, draws)
    assert size is not None
    noise = noise_for(draws, [30, 24, 15, 15, 30])
    given = {value.name for value in size.graph.inputs}
    assert run_ort(size, {"x": x} if given else {})[0] == len(noise)
    for want, got in zip(wanted, run_ort(model, {"x": x, "noise": noise})):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_functions_are_removed_after_feeding() -> None:
    model, draws = drawn(dropped, (None, None, 5))
    feed_uniforms(model, draws, "u")
    assert [value.name for value in model.graph.inputs] == ["x", "u"]
    assert not model.functions and set(model.opset_imports) == {""}
    assert {node.domain for node in model.graph} == {""}


def test_tensor_used_only_for_its_shape_stays() -> None:
    """A user may refer to its weights, even if they are unused."""

    def build(op: OpBuilder, x: Any) -> Any:
        return op.RandomUniformLike(op.MatMul(x, op.initializer("w", real(5, 4))))

    model, draws = drawn(build, ("n", "k"))
    feed_uniforms(model, draws)
    assert "w" in model.graph.initializers
    assert operators(model).count("MatMul") == 1


def test_fed_dropout_is_one_step_and_two_products_after_differentiation() -> None:
    """What stock onnxruntime runs fastest: m once, for y = x m and dx = dy m."""
    model, draws = drawn(dropped, (4, 5))
    differentiate(model, "x")
    feed_uniforms(model, draws)
    kinds = operators(TRAINING(model))
    assert kinds == ["Reshape", "HardSigmoid", "Mul", "Mul", "Mul"]


def test_the_size_of_computed_shapes_holds_the_weights() -> None:
    """The size model is made before parameters become inputs of the graph."""

    def build(op: OpBuilder, x: Any) -> Any:
        w = op.initializer("w", real(2, 1, 3))
        return dropped(op, op.Conv(x, w, strides=[2]))

    model, draws = drawn(build, ("n", 1, "time"))
    w = model.graph.initializers.pop("w")
    model.graph.inputs.append(w)
    weights, w.const_value = w.const_value, None
    assert weights is not None
    differentiate(model, "w")
    size = feed_uniforms(TRAINING(model), draws)
    assert size is not None and [value.name for value in size.graph.inputs] == ["x"]
    x = real(2, 1, 9)
    assert run_ort(size, {"x": x})[0] == 2 * 2 * 4
    feeds = {"x": x, "w": weights.numpy(), "dy": real(2, 2, 4), "noise": noise_for(draws, [16])}
    y, _ = run_ort(model, feeds)
    kept = uniform_numbers(SEED, 0, 16).reshape(2, 2, 4) >= np.float32(0.3)
    np.testing.assert_array_equal(y != 0, kept)


def test_a_repeated_call_reads_the_same_numbers() -> None:
    """As where the forward is computed again for the backward."""
    model, draws = drawn(dropped)
    (first,) = calls(model.graph, "DropoutMask")
    (scaled,) = calls(model.graph, "MaskedScale")
    again = ir.Node("onward", "DropoutMask", first.inputs, first.attributes.values())
    again.outputs[0].name, again.outputs[0].shape = "again", first.outputs[0].shape
    again.outputs[0].dtype = ir.DataType.BOOL
    model.graph.insert_before(scaled, again)
    model.graph.outputs.append(again.outputs[0])
    feed_uniforms(model, draws)
    u, x = uniform_numbers(SEED, 0, 30), np.ones((6, 5), np.float32)
    y, mask = run_ort(model, {"x": x, "noise": u})
    np.testing.assert_array_equal(y != 0, mask)


def test_a_removed_call_keeps_its_place() -> None:
    model, draws = drawn(lambda op, x: (dropped(op, x), dropped(op, op.Relu(x))), ("n", 5))
    model.graph.outputs.pop(0)
    feed_uniforms(TRAINING(model), draws)
    u, x = uniform_numbers(SEED, 0, 60), np.ones((6, 5), np.float32)
    (y,) = run_ort(model, {"x": x, "noise": u})
    np.testing.assert_array_equal(y != 0, u[30:].reshape(6, 5) >= np.float32(0.3))
