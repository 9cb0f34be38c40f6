"""Tables whose rows are looked up, and which are also the head of a language model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.weights.budget import WeightFormat, choose_formats
from onward.compress.quantization.weights.prepare import prepare
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.compress.quantization.weights.rounding import Inputs
from onward.compress.quantization.weights.scales import round_weights
from onward.compress.quantization.weights.sites import find_sites
from onward.compress.quantization.weights.stored import store
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
_SIZE = 64


def tied_model(table: Array, mix: Array) -> ir.Model:
    """Tokens to rows of a table, and to scores: mixed rows times the table."""
    op = OpBuilder(opset=18)
    shared = op.initializer("table", table)
    x = op.Gather(shared, op.input("tokens", "int64", ("batch", "time")))
    y = op.MatMul(op.Mul(x, mix), op.Transpose(shared, perm=[1, 0]))
    return op.model(rows=x, scores=y)


def few_inputs(rng: np.random.Generator) -> Array:
    """Factors of the head's inputs: some are much larger than the others."""
    return np.where(rng.random(_SIZE) < 0.1, 20, 1).astype(np.float32)


def rounded(
    model: ir.Model, data: Array | None, **options: Any
) -> tuple[list[Array], WeightQuantizer]:
    """The outputs of a quantized model, and its quantizer."""
    calibration = None
    if data is not None:
        calibration = Calibration({"tokens": data}, InferenceSession(model).get_inputs())
    quantizer = WeightQuantizer(model, calibration, **options)
    written = InferenceSession(quantizer.write(quantizer.plan))
    return written.run(None, {"tokens": np.arange(96).reshape(4, 24)}), quantizer


def relative(y: Array, expected: Array) -> float:
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))


def test_a_tied_table_is_rounded_for_the_inputs_of_its_head() -> None:
    rng = np.random.default_rng(0)
    table = (rng.normal(size=(96, 12)) @ rng.normal(size=(12, _SIZE))).astype(np.float32)
    model, tokens = tied_model(table, few_inputs(rng)), rng.integers(0, 96, (16, 24))
    rows, scores = InferenceSession(model).run(None, {"tokens": np.arange(96).reshape(4, 24)})
    plain, _ = rounded(model, None)
    fitted, quantizer = rounded(model, tokens)
    assert {format.method for format in quantizer.plan.values()} == {"gptq"}
    assert relative(fitted[1], scores) < 0.75 * relative(plain[1], scores)
    assert relative(fitted[0], rows) < 1.3 * relative(plain[0], rows)  # lookups count, too


def test_lookups_count_like_inputs_of_the_mean_square() -> None:
    moments = np.array([[3.0, 1.0], [1.0, 1.0]], np.float32)
    found = Inputs(moments=moments).with_lookups().moments
    assert found is not None and found.tolist() == [[5, 1], [1, 3]]
    squares = Inputs(squares=np.diag(moments)).with_lookups().squares
    assert squares is not None and squares.tolist() == [5, 3]
    assert Inputs().with_lookups().importance is None


@pytest.mark.parametrize("options", [{}, {"average_bits": 5.0}])
def test_a_tied_table_may_have_a_zero_for_each_block(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (96, _SIZE)).astype(np.float32)
    codes[:, ::32], codes[:, 1::32] = 0, 15
    scale = rng.uniform(0.01, 0.02, (96, 1)).astype(np.float16).astype(np.float32)
    table = (codes - 3) * scale
    model = tied_model(table, np.ones(_SIZE, np.float32))
    rows, scores = InferenceSession(model).run(None, {"tokens": np.arange(96).reshape(4, 24)})
    found, quantizer = rounded(model, None, **options)
    assert relative(found[0], rows) < 1e-6
    assert relative(found[1], scores) < 0.02  # of int8 data
    assert len(quantizer.plan) == 2


@pytest.mark.parametrize("size", [32, 96])
def test_zeros_that_do_not_fill_bytes_are_not_used(size: int) -> None:
    """A looked-up row of one or three blocks has half a byte too many."""
    table = np.random.default_rng(0).uniform(0, 1, (100, size)).astype(np.float32)
    [each], _ = find_sites(prepare(tied_model(table, np.ones(size, np.float32))))
    assert not each.allows_zeros(4, 32) and each.allows_zeros(4, 16)
    chosen = choose_formats([each], {}, int(4.7 * each.size / 8))
    assert chosen[each].scheme == "symmetric"


@pytest.mark.parametrize(
    ("bits", "block", "scheme"),
    [(4.5, 32, "symmetric"), (4.7, 32, "zeros"), (5.2, 32, "zeros"), (5.25, 16, "zeros")],
)
def test_a_budget_buys_zeros_and_smaller_blocks(bits: float, block: int, scheme: str) -> None:
    table = np.random.default_rng(0).uniform(-0.3, 1, (96, _SIZE)).astype(np.float32)
    [each], _ = find_sites(prepare(tied_model(table, np.ones(_SIZE, np.float32))))
    chosen = choose_formats([each], {}, int(bits * each.size / 8))
    assert chosen == {each: WeightFormat(4, block, scheme)}
    assert store(round_weights(table, 4, block, scheme), "bytes").nbytes * 8 <= bits * each.size


def test_awq_leaves_the_inputs_of_a_tied_table_alone() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(96, _SIZE)).astype(np.float32)
    model, tokens = tied_model(table, few_inputs(rng)), rng.integers(0, 96, (16, 24))
    rows = InferenceSession(model).run(None, {"tokens": np.arange(96).reshape(4, 24)})[0]
    found, quantizer = rounded(model, tokens, method="awq")
    assert {format.method for format in quantizer.plan.values()} == {"mse"}
    assert relative(found[0], rows) < 0.2
