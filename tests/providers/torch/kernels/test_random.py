"""Random numbers: their type, shape and moments, and that a seed repeats them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.testing import assert_array_equal
from onnx import TensorProto, helper
from torch._inductor.utils import run_and_get_code

from onward.gradients.model import extend
from onward.gradients.table import GRADIENTS
from onward.graph.builder import OpBuilder
from onward.passes.fed_uniforms import feed_uniforms
from onward.passes.pipelines import PREPARE, TRAINING
from onward.passes.random_draws import Draws, draw_uniforms
from onward.providers.torch.kernels.random import dropout_mask, masked_scale, random_key, uniform
from onward.providers.torch.lower import lower
from onward.providers.torch.table import HOST, KERNELS
from tests.passes.running import run_ort
from tests.passes.uniform_numbers import uniform_numbers
from tests.providers.torch.one_node import run_op

FLOATS: list[Any] = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
SHAPE = (100, 50)


def _number(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", [None, 0.5])
def test_normal_numbers_have_their_mean_and_scale(dtype: Any, seed: float | None) -> None:
    attributes: dict[str, Any] = {"mean": 3.0, "scale": 2.0, "dtype": _number(dtype)}
    attributes |= {} if seed is None else {"seed": seed}
    (x,) = run_op("RandomNormal", [], {"shape": SHAPE, **attributes})
    (y,) = run_op("RandomNormalLike", [np.zeros(SHAPE, np.int32)], attributes)
    for drawn in (x, y):
        assert drawn.dtype == dtype
        assert drawn.shape == SHAPE
        assert abs(drawn.astype(float).mean() - 3) < 0.2
        assert abs(drawn.astype(float).std() - 2) < 0.2


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", [None, 0.5])
def test_uniform_numbers_stay_between_their_ends(dtype: Any, seed: float | None) -> None:
    attributes: dict[str, Any] = {"low": -1.0, "high": 3.0, "dtype": _number(dtype)}
    attributes |= {} if seed is None else {"seed": seed}
    (x,) = run_op("RandomUniform", [], {"shape": SHAPE, **attributes})
    (y,) = run_op("RandomUniformLike", [np.zeros(SHAPE, np.int32)], attributes)
    for drawn in (x, y):
        assert drawn.dtype == dtype
        assert drawn.shape == SHAPE
        assert drawn.min() >= -1
        assert drawn.max() <= 3
        assert abs(drawn.astype(float).mean() - 1) < 0.1


def test_default_type_is_the_inputs() -> None:
    x = np.zeros((2, 0), np.float16)
    assert run_op("RandomNormalLike", [x])[0].dtype == np.float16
    assert run_op("RandomUniformLike", [x])[0].shape == (2, 0)
    assert run_op("Bernoulli", [x])[0].dtype == np.float16


@pytest.mark.parametrize("dtype", [*FLOATS, np.bool_, np.int8, np.uint16, np.uint64])
def test_bernoulli_draws_ones_with_its_probability(dtype: Any) -> None:
    p = np.full(SHAPE, 0.3, np.float32)
    for attributes in ({}, {"seed": 1.0}):
        (y,) = run_op("Bernoulli", [p], {"dtype": _number(dtype), **attributes})
        assert y.dtype == dtype
        assert 0.27 < y.astype(float).mean() < 0.33
    assert not run_op("Bernoulli", [np.zeros(SHAPE, np.float32)])[0].any()
    assert run_op("Bernoulli", [np.ones(SHAPE, np.float32)])[0].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_multinomial_draws_classes_by_their_log_probability(dtype: Any) -> None:
    x = np.log(np.array([[0.5, 0.25, 0.25], [1e-6, 1.0, 1e-6]])).astype(dtype)
    (y,) = run_op("Multinomial", [x], {"sample_size": 4000, "seed": 2.0})
    assert y.dtype == np.int32
    assert y.shape == (2, 4000)
    assert abs((y[0] == 0).mean() - 0.5) < 0.05
    assert (y[1] == 1).mean() > 0.99
    (y,) = run_op("Multinomial", [x], {"dtype": TensorProto.INT64})
    assert y.dtype == np.int64
    assert y.shape == (2, 1)


DRAWS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("RandomNormal", [], {"shape": SHAPE}),
    ("RandomUniform", [], {"shape": SHAPE}),
    ("RandomNormalLike", [np.zeros(SHAPE, np.float32)], {}),
    ("RandomUniformLike", [np.zeros(SHAPE, np.float32)], {}),
    ("Bernoulli", [np.full(SHAPE, 0.5, np.float32)], {}),
    ("Multinomial", [np.zeros(SHAPE, np.float32)], {"sample_size": 5}),
]


@pytest.mark.parametrize("op, inputs, attributes", DRAWS, ids=[op for op, *_ in DRAWS])
def test_a_seed_repeats_its_numbers_and_another_does_not(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    first, second = (run_op(op, inputs, {"seed": 0.1, **attributes})[0] for _ in range(2))
    (other,) = run_op(op, inputs, {"seed": 0.2, **attributes})
    (unseeded,) = run_op(op, inputs, attributes)
    assert_array_equal(first, second)
    assert (first != other).any()
    assert (first != unseeded).any()


# -- functions of domain onward ------------------------------------------------------------------

CPU = torch.device("cpu")


@pytest.mark.parametrize("draw", [[0, 0, 0], [1, 2, 3], [-5, 2**40, 0], [2**63 - 1, -(2**63), 7]])
@pytest.mark.parametrize("shape", [[], [7, 5], [3, 0], [1000]], ids=str)
def test_uniform_computes_the_bits_of_its_body(draw: list[int], shape: list[int]) -> None:
    key = random_key(torch.tensor(draw))
    for node in (0, 1, 70_000):
        u = uniform(key, shape, node=node, device=CPU)
        wanted = uniform_numbers(draw, node, int(np.prod(shape))).reshape(shape)
        assert_array_equal(u.numpy(), wanted)
        kept = dropout_mask(key, shape, node=node, ratio=0.3, device=CPU)
        assert_array_equal(kept.numpy(), wanted >= np.float32(0.3))


def test_draws_do_not_change_torchs_generator_or_inputs() -> None:
    before, draw = torch.get_rng_state(), torch.tensor([1, 2, 3])
    key = random_key(draw)
    words = key.clone()
    uniform(key, [5], node=0, device=CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert draw.tolist() == [1, 2, 3] and torch.equal(key, words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_masked_scale_is_a_product(dtype: torch.dtype) -> None:
    x, mask = torch.randn(40, dtype=dtype), torch.rand(40) > 0.5
    y = masked_scale(x, mask, 1 / 0.9)
    assert y.dtype == dtype
    torch.testing.assert_close(y, torch.where(mask, x / 0.9, 0))


def trained(count: int) -> tuple[ir.Model, Draws]:
    """The gradient of so many Dropouts with products between them."""
    op = OpBuilder()
    x, w = op.input("x", "float32", ("n", 32)), op.input("w", "float32", (32, 32))
    y = x
    for _ in range(count):
        y = op.MatMul(op.Dropout(op.Relu(y), np.float32(0.3), np.array(True)), w)
    model = PREPARE(op.model(loss=op.ReduceSum(op.Mul(y, y), keepdims=0)))
    draws = draw_uniforms(model)
    assert draws is not None
    extend(model, {"loss": None}, ["x", "w"], GRADIENTS)
    return TRAINING(model), draws


def test_gradients_match_onnxruntime_with_the_same_random_numbers() -> None:
    model, draws = trained(3)
    module, draw = lower(model.graph, KERNELS, HOST), [5, 1, 0]
    x, w = torch.randn(16, 32), torch.randn(32, 32) / 6
    feed_uniforms(model, draws)
    noise = np.concatenate([uniform_numbers(draw, node, 16 * 32) for node in range(3)])
    expected = run_ort(model, {"x": x.numpy(), "w": w.numpy(), "noise": noise})
    for got, wanted in zip(module(x, w, torch.tensor(draw)), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.conformance  # it compiles C++ for many seconds
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_inductor_draws_the_same_numbers_and_stores_byte_masks() -> None:
    module = lower(trained(3)[0].graph, KERNELS, HOST)
    x, w = torch.randn(16, 32), torch.randn(32, 32) / 6
    torch._dynamo.reset()
    compiled = torch.compile(module, dynamic=True, fullgraph=True)
    results, (code,) = run_and_get_code(compiled, x, w, torch.tensor([5, 1, 0]))
    for got, wanted in zip(results, module(x, w, torch.tensor([5, 1, 0])), strict=True):
        torch.testing.assert_close(got, wanted)
    buffers = [line for line in code.splitlines() if " = empty_strided_cpu(" in line]
    kept = [line for line in buffers if "torch.bool" in line]
    assert len(kept) == 3
    assert not [line for line in buffers if "torch.int" in line and "(2, )" not in line]
    again, other = (compiled(x, w, torch.tensor([5, step, 0])) for step in (1, 2))
    assert torch.equal(again[1], results[1])
    assert not torch.equal(other[1], results[1])
