"""The random functions draw the same bits on every engine, of good statistical quality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onward
from onward.graph.builder import OpBuilder
from onward.passes.random_functions import DOMAIN, calls, register
from tests.passes.running import run_ort, run_reference
from tests.passes.uniform_numbers import uniform_numbers

COUNT = 1 << 16
DRAWS = [[0, 0, 0], [1, 2, 3], [-5, 2**40, 0], [2**63 - 1, -(2**63), 7]]


def model_of(
    function: str, shape: Any, output: ir.DataType = ir.DataType.FLOAT, **attributes: Any
) -> ir.Model:
    """A model of one call; a shape of None is an input."""
    op = OpBuilder(opset=21)
    key = op.RandomKey(op.input("draw", "int64", (3,)), domain=DOMAIN)
    sizes = op.input("shape", "int64", ("rank",)) if shape is None else np.array(shape, np.int64)
    y = op.node(function, (key, sizes), attributes, domain=DOMAIN)
    assert isinstance(y, ir.Value)
    y.dtype = output
    y.shape = None if shape is None else ir.Shape(shape)
    model = op.model(y=y)
    for name in ("RandomKey", function):
        register(model, name)
    return model


def drawn(model: ir.Model, *draw: int, **feeds: Any) -> Any:
    (y,) = run_ort(ir.to_proto(model), {"draw": np.array(draw), **feeds})
    return y


# -- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [run_ort, run_reference])
@pytest.mark.parametrize("draw", DRAWS, ids=str)
@pytest.mark.parametrize("node", [0, 1, 70_000])
def test_a_stock_runtime_runs_the_body(run: Any, draw: list[int], node: int) -> None:
    model = model_of("Uniform", (5, 7), node=node)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    (u,) = run(proto, {"draw": np.array(draw)})
    assert u.dtype == np.float32
    np.testing.assert_array_equal(u.reshape(-1), uniform_numbers(draw, node, 35))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4)], ids=str)
def test_the_shape_may_be_computed(shape: tuple[int, ...]) -> None:
    model = model_of("Uniform", None, node=3)
    u = drawn(model, 1, 2, 3, shape=np.array(shape, np.int64))
    assert u.shape == shape
    numbers = uniform_numbers([1, 2, 3], 3, math.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(u, numbers)


@pytest.mark.parametrize(
    "provider",
    ["CPUExecutionProvider", "TorchExecutionProvider", "ReferenceExecutionProvider"],
)
def test_a_session_runs_the_functions_on_any_provider(provider: str) -> None:
    for function, kind in [("Uniform", ir.DataType.FLOAT), ("DropoutMask", ir.DataType.BOOL)]:
        ratio = {"ratio": 0.3} if function == "DropoutMask" else {}
        model = model_of(function, (6, 5), kind, node=2, **ratio)
        session = onward.InferenceSession(model, providers=[provider])
        (y,) = session.run(None, {"draw": np.array([4, 5, 6])})
        u = uniform_numbers([4, 5, 6], 2, 30).reshape(6, 5)
        np.testing.assert_array_equal(y, u >= np.float32(0.3) if ratio else u)


def test_masked_scale_rounds_the_factor_to_the_type_of_x() -> None:
    op = OpBuilder(opset=21)
    x, mask = op.input("x", "float16", (4,)), op.input("mask", "bool", (4,))
    y = op.MaskedScale(x, mask, np.float32(1 / 0.9), domain=DOMAIN)
    y.type, y.shape = x.type, x.shape
    model = op.model(y=y)
    register(model, "MaskedScale")
    feeds = {"x": np.float16([1, 2, 3, -4]), "mask": np.array([True, False, True, True])}
    (y,) = run_ort(ir.to_proto(model), feeds)
    np.testing.assert_array_equal(y, feeds["x"] * (feeds["mask"] * np.float16(1 / 0.9)))


def rounding(x: Any, provider: str, step: int = 5) -> Any:
    """x rounded by StochasticRound, in float32."""
    op = OpBuilder(opset=21)
    key = op.RandomKey(op.input("draw", "int64", (3,)), domain=DOMAIN)
    y = op.node(
        "StochasticRound", (op.input("x", "float32", ("n",)), key), {"node": 3}, domain=DOMAIN
    )
    assert isinstance(y, ir.Value)
    y.dtype, y.shape = ir.DataType.BFLOAT16, ir.Shape(("n",))
    model = op.model(y=op.Cast(y, to=1))
    for name in ("RandomKey", "StochasticRound"):
        register(model, name)
    session = onward.InferenceSession(model, providers=[provider])
    return session.run(None, {"draw": np.array([0, step, 0]), "x": x})[0]


def test_stochastic_round_has_the_same_bits_on_every_engine() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.normal(size=5000) * 10.0 ** rng.integers(-30, 30, 5000)
    exact = [0.0, -0.0, 1.0, -2.0, 0.5, 1e-45, 1.0000001, 0.99999994, np.inf, -np.inf, np.nan]
    x = np.array([*sizes, *exact], np.float32)
    by_torch, by_ort = (rounding(x, f"{name}ExecutionProvider") for name in ("Torch", "CPU"))
    np.testing.assert_array_equal(by_torch, by_ort)
    error = np.abs(by_torch[:5000] - x[:5000]) / np.abs(x[:5000])
    assert error.max() < 2.0**-7
    assert by_torch[:5000].view(np.uint32).astype(np.uint16).max() == 0  # bfloat16
    np.testing.assert_array_equal(by_torch[5000:5005], x[5000:5005])
    np.testing.assert_array_equal(by_torch[-3:], x[-3:])


def test_stochastic_round_has_x_as_its_mean() -> None:
    x = np.full(COUNT, 1.001, np.float32)  # an eighth of the way from 1 to the next
    y = rounding(x, "CPUExecutionProvider")
    assert set(y) == {1.0, 1.0078125}
    assert np.mean(y - 1.0) == pytest.approx(0.001, rel=0.05)
    assert (y != rounding(x, "CPUExecutionProvider", step=6)).any()


def test_functions_are_entered_once() -> None:
    model = model_of("Uniform", (2,), node=0)
    before = dict(model.functions)
    register(model, "Uniform")
    assert dict(model.functions) == before
    assert [node.op_type for node in calls(model.graph, "Uniform")] == ["Uniform"]
    assert model.opset_imports[DOMAIN] == 1


# -- quality -------------------------------------------------------------------------------------


def correlation(a: Any, b: Any) -> float:
    """The correlation of two samples of uniform numbers, in standard deviations."""
    product = (a.astype(np.float64) - 0.5) * (b.astype(np.float64) - 0.5)
    return float(abs(product.mean()) * 12 * math.sqrt(product.size))


FAR = 4.5  # standard deviations: exceeded by chance once in 150,000 times; the draws are fixed
STREAMS = [(draw, node) for draw in ([0, 0, 0], [1, 0, 0], [42, 999, 3]) for node in (0, 1, 2, 57)]


@pytest.mark.parametrize(("draw", "node"), STREAMS, ids=str)
def test_numbers_are_uniform(draw: list[int], node: int) -> None:
    u = uniform_numbers(draw, node, COUNT).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) * math.sqrt(12 * COUNT) < FAR
    assert abs(((u - 0.5) ** 2).mean() - 1 / 12) * math.sqrt(180 * COUNT) < FAR
    for bins in (16, 256, 1000):
        counts = np.bincount((u * bins).astype(int), minlength=bins)
        chi_square = ((counts - COUNT / bins) ** 2).sum() * bins / COUNT
        assert abs(chi_square - bins + 1) < FAR * math.sqrt(2 * bins)


@pytest.mark.parametrize(("draw", "node"), STREAMS, ids=str)
def test_every_bit_is_set_half_of_the_time(draw: list[int], node: int) -> None:
    bits = (uniform_numbers(draw, node, COUNT) * 2.0**24).astype(np.int64)
    for bit in range(24):
        assert abs((bits >> bit & 1).mean() - 0.5) * 2 * math.sqrt(COUNT) < FAR


@pytest.mark.parametrize(("draw", "node"), STREAMS, ids=str)
def test_neighbours_are_not_correlated(draw: list[int], node: int) -> None:
    u = uniform_numbers(draw, node, COUNT)
    for lag in (1, 2, 3, 7, 8, 64, 256, 768, 1024, 4096):
        assert correlation(u[lag:], u[:-lag]) < FAR
    pairs = (u[::2] * 32).astype(int) * 32 + (u[1::2] * 32).astype(int)
    counts, wanted = np.bincount(pairs, minlength=1024), COUNT / 2 / 1024
    chi_square = ((counts - wanted) ** 2).sum() / wanted
    assert abs(chi_square - 1023) < FAR * math.sqrt(2 * 1023)


def test_nodes_steps_and_seeds_are_not_correlated() -> None:
    streams = [uniform_numbers([7, 10, 0], node, COUNT) for node in range(12)]
    streams += [uniform_numbers([7, step, 0], 0, COUNT) for step in (9, 11, 12, 10 + 2**32)]
    streams += [uniform_numbers([7, 10, micro], 0, COUNT) for micro in (1, 2, 3)]
    streams += [uniform_numbers([seed, 10, 0], 0, COUNT) for seed in (-7, 6, 8, 10)]
    worst = max(
        correlation(a[lag:], b[: COUNT - lag])
        for i, a in enumerate(streams)
        for b in streams[:i]
        for lag in (0, 1)
    )
    assert worst < 5  # the largest of 506


def test_the_first_numbers_of_many_steps_are_uniform() -> None:
    """What one element of one node sees in the course of a training."""
    u = np.array([uniform_numbers([1, step, 0], 4, 1)[0] for step in range(4000)])
    assert abs(u.mean() - 0.5) * math.sqrt(12 * u.size) < FAR
    assert correlation(u[1:], u[:-1]) < FAR
