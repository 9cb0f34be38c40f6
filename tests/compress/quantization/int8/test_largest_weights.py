"""8-bit weights whose products are exact, on processors that add products in 16 bits too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.compress.calibration import Calibration
from onward.compress.learned_rounding.quantized_weights import find_weights
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.graph.int8_weights import ALL, ALL_BUT_OLD, CUT_OFF_FREE, marked_processors
from onward.sessions.inference import InferenceSession

RNG = np.random.default_rng(0)
ROWS = {"ids": RNG.integers(0, 50, (32, 3)), "x": RNG.normal(size=(32, 64)).astype(np.float32)}


def layers() -> ir.Model:
    """A table, a product, a convolution and an LSTM."""
    op, random = OpBuilder(opset=18), np.random.default_rng(1)

    def weight(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, (random.normal(size=shape) / 8).astype(np.float32))

    ids, x = op.input("ids", "int64", ("batch", 3)), op.input("x", "float32", ("batch", 64))
    rows = op.Gather(weight("table", 2048, 64), ids)
    image = op.Reshape(op.MatMul(x, weight("product", 64, 96)), np.array([-1, 6, 4, 4]))
    conv = op.Conv(image, weight("kernel", 8, 6, 3, 3))
    time = op.Transpose(rows, perm=[1, 0, 2])
    _, last = op.LSTM(
        time, weight("w", 1, 64, 64), weight("r", 1, 64, 16), hidden_size=16, outputs=2
    )
    return op.model(conv=conv, last=last)


def int8_weights(model: ir.Model) -> dict[str, int]:
    """The largest number of each weight, by the name of the float weight."""
    found: dict[str, int] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.dtype == ir.DataType.INT8 and tensor.numpy().any():
            found[str(name).partition("/")[0]] = int(np.abs(tensor.numpy().astype(int)).max())
    return found


def quantized(largest: int) -> ir.Model:
    model = layers()
    data = Calibration(ROWS, InferenceSession(model).get_inputs())
    quantizer = Int8Quantizer(model, data, largest=largest)
    return quantizer.write(quantizer.plan)


def test_weights_of_products_are_as_large_as_asked_for_and_those_of_tables_127() -> None:
    assert int8_weights(quantized(64)) == {
        "table": 127,
        "product": 64,
        "kernel": 64,
        "w": 64,
        "r": 64,
    }
    assert set(int8_weights(quantized(127)).values()) == {127}


def test_int8_weights_are_exact_on_every_processor() -> None:
    small = Int8Quantizer(layers(), Calibration(ROWS, InferenceSession(layers()).get_inputs()))
    quantized = small.write(small.plan)
    assert max(n for name, n in int8_weights(quantized).items() if name != "table") == CUT_OFF_FREE
    expected = InferenceSession(layers()).run(None, ROWS)
    for y, z in zip(InferenceSession(quantized).run(None, ROWS), expected, strict=True):
        assert np.linalg.norm(y - z) < 0.04 * np.linalg.norm(z)


def test_a_file_says_which_processors_it_is_for() -> None:
    for largest, processors, words in (
        (64, ALL, "made for all processors"),
        (127, ALL_BUT_OLD, "made for processors like this one"),
    ):
        quantizer = Int8Quantizer(layers(), None, largest=largest)
        assert marked_processors(quantizer.write(quantizer.plan)) == processors
        assert words in quantizer.notes[0]
        tables = {n: each for n, each in quantizer.plan.items() if each.kind == "weights"}
        assert tables and not quantizer.notes_for(tables)
        assert marked_processors(quantizer.write({})) is None


def test_learned_weights_stay_exact() -> None:
    small = {str(each.node.inputs[0].name): each.grid for each in find_weights(quantized(64))}  # type: ignore[union-attr]
    assert small and {(grid.low, grid.high) for grid in small.values()} == {(-64, 64)}
    large = [each.grid for each in find_weights(quantized(127))]
    assert {(grid.low, grid.high) for grid in large} == {(-128, 127)}


@pytest.mark.parametrize("given", [0, 128, -3])
def test_the_largest_weight_has_to_fit_into_8_bits(given: Any) -> None:
    with pytest.raises(OptionError, match=f"largest must be from 1 to 127, not {given}"):
        Int8Quantizer(layers(), None, largest=given)
