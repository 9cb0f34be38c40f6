"""Weights of odd sizes: stock onnxruntime computes what the stored codes and scales say."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.quantization_plan import NodeFormat
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.graph.protos import to_proto
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]


def product(inputs: int, outputs: int, mean: float = 0.0) -> ir.Model:
    """x (batch, inputs) times a weight."""
    w = np.random.default_rng(inputs + outputs).normal(mean, 0.1, (inputs, outputs))
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", inputs))
    return op.model(y=op.MatMul(x, op.initializer("w", w.astype(np.float32))))


def stored_weight(model: ir.Model) -> Array:
    """What the stored tensors say, in numpy: (codes - zeros) * scales."""
    found = {str(name): value.const_value for name, value in model.graph.initializers.items()}
    arrays = {name: np.asarray(t.numpy(), np.float32) for name, t in found.items() if t is not None}
    codes = next(array for name, array in arrays.items() if ".int" in name)
    [wide] = [node for node in model.graph if node.op_type == "DequantizeLinear"]
    block = wide.attributes["block_size"].as_int()
    spread = {
        name: np.repeat(array, block, axis=0)[: len(codes)]
        for name, array in arrays.items()
        if array is not codes
    }
    return (codes - spread.get("w.zeros", np.float32(0))) * spread["w.scales"]


def check(bits: int, inputs: int, outputs: int, mean: float, block: int | None = None) -> int:
    """Compare the written model with numpy; the bits that were used."""
    quantizer = WeightQuantizer(product(inputs, outputs, mean), bits=bits, block=block)
    [format] = quantizer.plan.values()
    model = quantizer.write(quantizer.plan)
    session = onnxruntime.InferenceSession(to_proto(model).SerializeToString())
    for rows in (1, 3):
        x = np.random.default_rng(rows).normal(size=(rows, inputs)).astype(np.float32)
        expected = x @ stored_weight(model)
        lost = np.linalg.norm(session.run(None, {"x": x})[0] - expected)
        assert lost < 0.03 * np.linalg.norm(expected)  # the data is rounded to int8
    return format.bits


@pytest.mark.parametrize("outputs", [5, 6, 7, 8])
@pytest.mark.parametrize("mean", [0.0, 0.3])
def test_2_bits_are_4_where_onnxruntime_would_err(outputs: int, mean: float) -> None:
    assert check(2, 256, outputs, mean) == (2 if outputs == 8 else 4)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("mean", [0.0, 0.3])
@pytest.mark.parametrize(("inputs", "outputs"), [(17, 65), (65, 33), (100, 31), (33, 47)])
def test_odd_sizes_are_computed_as_stored(
    bits: int, mean: float, inputs: int, outputs: int
) -> None:
    assert check(bits, inputs, outputs, mean) == bits
    assert check(bits, inputs, outputs, mean, block=128) == bits  # larger than a row


def test_a_budget_gives_4_bits_too() -> None:
    model = product(256, 6)
    with pytest.raises(OptionError, match="in the smallest formats"):
        WeightQuantizer(model, average_bits=3)
    assert WeightQuantizer(product(256, 8), average_bits=3).notes


def test_the_notes_name_the_weights_and_plans_are_checked() -> None:
    quantizer = WeightQuantizer(product(256, 6), bits=2)
    [name], [note] = quantizer.plan, quantizer.notes
    assert note.startswith(f"4 bits for {name}: onnxruntime computes 2 bits wrongly")
    with pytest.raises(OptionError, match="a multiple of 4, not 6"):
        quantizer.write({name: NodeFormat(kind="weights", bits=2, block=32)})


def test_a_weight_with_nan_stays_as_it_is() -> None:
    model = product(64, 64)
    value = model.graph.initializers["w"]
    assert value.const_value is not None
    w = value.const_value.numpy().copy()
    w[3, 4] = np.nan
    value.const_value = ir.tensor(w)
    quantizer = WeightQuantizer(model, bits=4)
    assert not quantizer.plan
    assert list(quantizer.refused.values()) == ["its weight has NaN or infinite numbers"]


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("method", ["gptq", "awq", "auto"])
def test_rows_that_no_sum_can_have_are_left_out_of_moments(method: str, odd: float) -> None:
    op = OpBuilder(opset=18)
    x, z = op.input("x", "float32", ("batch", 64)), op.input("z", "float32", ("batch", 1))
    w = np.random.default_rng(0).normal(0, 0.1, (64, 32)).astype(np.float32)
    h = op.Div(x, z)
    model = op.model(y=op.MatMul(h, op.initializer("w", w)))
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(16, 64)).astype(np.float32)
    divisors = np.ones((16, 1), np.float32)
    whole = {"x": rows, "z": divisors}
    with_odd = {
        "x": np.concatenate([rows, np.full((1, 64), 0.0 if np.isnan(odd) else 1, np.float32)]),
        "z": np.concatenate([divisors, np.full((1, 1), 1 / odd if odd == 1e30 else 0, np.float32)]),
    }
    found = []
    for feeds in (whole, with_odd):
        data = Calibration([feeds], InferenceSession(model).get_inputs())
        quantizer = WeightQuantizer(model, data, bits=4, method=method)
        found.append(stored_weight(quantizer.write(quantizer.plan)))
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize(("inputs", "block"), [(192, 64), (96, 32), (48, 16), (100, 128)])
def test_blocks_are_whole_where_a_smaller_one_divides_the_inputs(inputs: int, block: int) -> None:
    """OpenVINO loads no others of 4 bits."""
    quantizer = WeightQuantizer(product(inputs, 64), bits=4, block=128)
    assert {format.block for format in quantizer.plan.values()} == {block}
    small = WeightQuantizer(product(inputs, 64), bits=2, block=128)  # which OpenVINO lacks
    assert {format.block for format in small.plan.values()} == {128}


def test_a_budget_buys_whole_blocks() -> None:
    """576 inputs have 4.5 blocks of 128."""
    quantizer = WeightQuantizer(product(576, 64), average_bits=4.3)
    assert {format.block for format in quantizer.plan.values()} == {64}
    pytest.importorskip("openvino")
    options = SessionOptions(disable_fallback=True)
    session = InferenceSession(quantizer.write(quantizer.plan), options, ["openvino"])
    assert session.get_providers() == ["OpenVINOExecutionProvider"]
    assert session.run(None, {"x": np.zeros((2, 576), np.float32)})[0].shape == (2, 64)
