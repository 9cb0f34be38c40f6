"""Int8Quantizer on small models, run by stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]


def _normal(*shape: int, seed: int = 0, scale: float = 0.1) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def _w(op: OpBuilder, name: str, *shape: int, scale: float = 0.1) -> ir.Value:
    return op.initializer(name, _normal(*shape, seed=len(name) + sum(shape), scale=scale))


def conv_net(opset: int = 18) -> ir.Model:
    """Convolutions with Relu and Relu6, a residual Add, pooling and a classifier."""
    op = OpBuilder(opset)
    x = op.input("x", "float32", ("batch", 3, 16, 16))
    x = op.Relu(op.Conv(x, _w(op, "w1", 8, 3, 3, 3), _w(op, "b1", 8), pads=[1, 1, 1, 1]))
    y = op.Clip(op.Conv(x, _w(op, "w2", 8, 8, 1, 1, scale=0.5), _w(op, "b2", 8)), 0.0, 6.0)
    y = op.Clip(op.Conv(y, _w(op, "w3", 8, 1, 3, 3), pads=[1, 1, 1, 1], group=8), 0.0, 6.0)
    y = op.Add(x, op.Conv(y, _w(op, "w4", 8, 8, 1, 1), _w(op, "b4", 8)))
    y = op.MaxPool(y, kernel_shape=[2, 2], strides=[2, 2])
    y = op.Flatten(op.GlobalAveragePool(y))
    return op.model(y=op.Gemm(y, _w(op, "w5", 10, 8), _w(op, "b5", 10), transB=1))


def transformer(*, hidden: int = 32) -> ir.Model:
    """An embedding, a layer norm with outlier channels, and a feed-forward block."""
    op = OpBuilder(20)
    ids = op.input("ids", "int64", ("batch", "tokens"))
    x = op.Gather(_w(op, "table", 600, hidden, scale=1.0), ids)
    gain = np.ones(hidden, np.float32)
    gain[3] = 40.0  # what SmoothQuant is for
    n = op.LayerNormalization(x, op.initializer("gain", gain), op.initializer("shift", gain * 0.1))
    h = op.Gelu(op.Add(op.MatMul(n, _w(op, "up", hidden, 64)), _w(op, "up_bias", 64)))
    return op.model(
        y=op.Add(n, op.Add(op.MatMul(h, _w(op, "down", 64, hidden)), _w(op, "db", hidden)))
    )


def recurrent() -> ir.Model:
    op = OpBuilder(18)
    x = op.input("x", "float32", (6, 2, 16))
    w, r, b = _w(op, "w", 2, 64, 16), _w(op, "r", 2, 64, 16), _w(op, "b", 2, 128)
    y = op.LSTM(x, w, r, b, hidden_size=16, direction="bidirectional")
    return op.model(y=op.MatMul(y, _w(op, "head", 16, 8)))


def images(count: int = 3) -> list[dict[str, Array]]:
    return [{"x": _normal(4, 3, 16, 16, seed=seed, scale=1.0)} for seed in range(count)]


def tokens() -> list[dict[str, Array]]:
    return [{"ids": np.random.default_rng(n).integers(0, 600, (4, 7))} for n in range(3)]


def data_for(model: ir.Model, feeds: Any) -> Calibration:
    return Calibration(feeds, InferenceSession(model).get_inputs())


def optimized(model: ir.Model, tmp_path: Any) -> list[str]:
    """The operators that stock onnxruntime runs."""
    ir.save(model, tmp_path / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(
        str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    return [node.op_type for node in ir.load(tmp_path / "optimized.onnx").graph]


def error(model: ir.Model, changed: ir.Model, feeds: dict[str, Array]) -> float:
    y, z = (InferenceSession(each).run(None, feeds)[0] for each in (model, changed))
    return float(np.linalg.norm(y - z) / np.linalg.norm(y))


def test_a_conv_net_runs_on_integers_from_end_to_end(tmp_path: Any) -> None:
    model = conv_net()
    quantizer = Int8Quantizer(model, data_for(model, images()))
    quantized = quantizer.write(quantizer.plan)
    assert error(model, quantized, images()[0]) < 0.05
    operators = optimized(quantized, tmp_path)
    assert operators.count("QLinearConv") == 4 and operators.count("QGemm") == 1
    assert operators.count("QuantizeLinear") == 1 and "DequantizeLinear" not in operators
    assert "Conv" not in operators and "Relu" not in operators and "Clip" not in operators


def test_matmuls_of_transformers_give_floats_and_tables_are_never_dequantized(
    tmp_path: Any,
) -> None:
    model = transformer()
    quantizer = Int8Quantizer(model, data_for(model, tokens()))
    quantized = quantizer.write(quantizer.plan)
    assert error(model, quantized, tokens()[0]) < 0.03
    operators = optimized(quantized, tmp_path)
    assert operators.count("MatMulIntegerToFloat") == 2 and "MatMul" not in operators
    assert "DequantizeLinear" not in operators
    table = quantized.graph.initializers["table/int8"]
    assert table.dtype == ir.DataType.INT8 and "table" not in quantized.graph.initializers


def test_dynamic_form_needs_no_data(tmp_path: Any) -> None:
    model = transformer()
    quantizer = Int8Quantizer(model, None)
    assert {str(each) for each in quantizer.plan.values()} == {
        "int8 dynamic, mse",
        "int8 weights, rtn",
    }
    quantized = quantizer.write(quantizer.plan)
    assert error(model, quantized, tokens()[0]) < 0.05
    operators = optimized(quantized, tmp_path)
    assert operators.count("DynamicQuantizeMatMul") == 2


def test_convolutions_without_data_are_refused_with_the_reason() -> None:
    quantizer = Int8Quantizer(conv_net(), None)
    assert "needs data" in next(iter(quantizer.refused.values()))
    assert all(each.kind == "dynamic" for each in quantizer.plan.values())


def test_an_lstm_becomes_the_contrib_operator(tmp_path: Any) -> None:
    model = recurrent()
    quantizer = Int8Quantizer(model, None)
    quantized = quantizer.write(quantizer.plan)
    assert "DynamicQuantizeLSTM" in optimized(quantized, tmp_path)
    assert error(model, quantized, {"x": _normal(6, 2, 16, scale=1.0)}) < 0.05


@pytest.mark.parametrize("make", [conv_net, transformer, recurrent])
def test_every_part_of_a_plan_can_be_undone(make: Any) -> None:
    model = make()
    feeds = {conv_net: images, transformer: tokens}.get(make, lambda: [{"x": _normal(6, 2, 16)}])()
    quantizer = Int8Quantizer(model, data_for(model, feeds))
    assert sorted(name for group in quantizer.groups(quantizer.plan) for name in group) == sorted(
        quantizer.plan
    )
    for group in quantizer.groups(quantizer.plan):
        for left in (
            {name: each for name, each in quantizer.plan.items() if name not in group},
            {name: quantizer.plan[name] for name in group},
        ):
            assert error(model, quantizer.write(left), feeds[0]) < 0.06
    assert error(model, quantizer.write({}), feeds[0]) < 1e-3


def test_the_first_convolution_is_a_group_of_its_own() -> None:
    model = conv_net()
    quantizer = Int8Quantizer(model, data_for(model, images()))
    groups = quantizer.groups(quantizer.plan)
    assert len(groups[0]) == 1 and len(groups) > 2


def test_the_same_plan_gives_the_same_bytes() -> None:
    model = conv_net()
    made = []
    for _ in range(2):
        quantizer = Int8Quantizer(model, data_for(model, images()))
        made.append(ir.serde.serialize_model(quantizer.write(quantizer.plan)).SerializeToString())
    assert made[0] == made[1]


def test_the_original_does_not_change() -> None:
    model = conv_net()
    before = ir.serde.serialize_model(model).SerializeToString()
    quantizer = Int8Quantizer(model, data_for(model, images()))
    quantizer.write(quantizer.plan)
    assert ir.serde.serialize_model(model).SerializeToString() == before


def test_smoothing_lowers_the_error_of_outlier_channels() -> None:
    model = transformer()
    data = data_for(model, tokens())
    errors = {}
    for smooth in (False, True):
        quantizer = Int8Quantizer(model, data, smooth=smooth, correct_biases=False)
        errors[smooth] = error(model, quantizer.write(quantizer.plan), tokens()[0])
    assert errors[True] < errors[False]


def test_a_tied_table_is_stored_once(tmp_path: Any) -> None:
    op = OpBuilder(20)
    ids = op.input("ids", "int64", ("batch", "tokens"))
    table = _w(op, "table", 600, 32)
    h = op.Gather(table, ids)
    model = op.model(y=op.MatMul(op.Relu(h), op.Transpose(table, perm=[1, 0])))
    quantizer = Int8Quantizer(model, data_for(model, tokens()))
    quantized = quantizer.write(quantizer.plan)
    large = [
        each for each in quantized.graph.initializers.values() if each.const_value.size >= 19200
    ]  # type: ignore[union-attr]
    assert [each.dtype for each in large] == [ir.DataType.INT8]
    assert error(model, quantized, tokens()[0]) < 0.03
    assert "MatMulIntegerToFloat" in optimized(quantized, tmp_path)


def test_weights_of_subgraphs_stay_float() -> None:
    op = OpBuilder(18)
    x = op.input("x", "float32", (2, 16))
    w = _w(op, "w", 16, 16)
    branches = []
    for name in ("then", "else"):
        inner = OpBuilder(18)
        y = inner.MatMul(x, w)
        y.name = name
        inner.graph.outputs.append(y)
        branches.append(inner.graph)
    condition = op.Greater(op.ReduceSum(x, keepdims=0), 0.0)
    y = op.If(condition, then_branch=branches[0], else_branch=branches[1])
    y.type, y.shape = x.type, ir.Shape([2, 16])
    model = op.model(y=op.MatMul(y, w))
    quantizer = Int8Quantizer(model, data_for(model, [{"x": _normal(2, 16)}]))
    assert len(quantizer.plan) == 1
    assert set(quantizer.refused.values()) == {"it is inside If, Loop or Scan"}
    assert error(model, quantizer.write(quantizer.plan), {"x": _normal(2, 16)}) < 0.05


def test_a_quantized_model_and_one_without_layers_are_left_alone() -> None:
    model = conv_net()
    quantizer = Int8Quantizer(model, data_for(model, images()))
    again = Int8Quantizer(quantizer.write(quantizer.plan), data_for(model, images()))
    assert not again.plan and set(again.refused.values()) == {"it is quantized already"}
    op = OpBuilder(18)
    nothing = op.model(y=op.Tanh(op.input("x", "float32", (2, 3))))
    empty = Int8Quantizer(nothing, data_for(nothing, [{"x": _normal(2, 3)}]))
    assert not empty.plan and not empty.refused
    assert len(empty.write(empty.plan).graph) == 1


def test_an_unknown_way_to_choose_ranges_is_refused() -> None:
    with pytest.raises(OptionError, match="ranges='best' does not exist\nit must be one of minmax"):
        Int8Quantizer(conv_net(), None, ranges="best")
