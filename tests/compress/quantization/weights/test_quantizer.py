"""WeightQuantizer on small models of several kinds: what it writes runs, fused, on onnxruntime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onward.compress.calibration import Calibration
from onward.compress.quantization.quantization_plan import NodeFormat
from onward.compress.quantization.weights.quantizer import WeightQuantizer
from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.graph.files import load, save
from onward.graph.protos import to_proto
from onward.sessions.inference import InferenceSession

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(0)


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, 0.1, shape).astype(np.float32)


def perceptron(opset: int = 18) -> ir.Model:
    """x (batch, 64) -> Gemm with transB, MatMul, MatMul with a transposed weight."""
    op = OpBuilder(opset=opset)
    x = op.input("x", "float32", ("batch", 64))
    a = op.Relu(op.Gemm(x, op.initializer("a", noise(96, 64)), noise(96), transB=1))
    b = op.Relu(op.MatMul(a, op.initializer("b", noise(96, 80))))
    return op.model(y=op.MatMul(b, op.Transpose(op.initializer("c", noise(40, 80)), perm=[1, 0])))


def language_model(*, tied: bool = True) -> ir.Model:
    """Tokens to scores: a table of 100 rows, which is also the head."""
    op = OpBuilder(opset=18)
    tokens = op.input("tokens", "int64", ("batch", "time"))
    table = op.initializer("table", noise(100, 64))
    x = op.Gather(table, tokens)
    x = op.Add(x, op.Relu(op.MatMul(x, op.initializer("w", noise(64, 64)))))
    head = op.Transpose(table, perm=[1, 0])
    if not tied:
        head = op.initializer("head", noise(100, 64).T.copy())
    return op.model(scores=op.MatMul(x, head))


def run(model: ir.Model, feeds: dict[str, Array], file: Path) -> tuple[Array, Counter[str]]:
    """The first output on stock onnxruntime, and the operators of the optimised graph."""
    save(model, file)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(file.with_suffix(".optimised.onnx"))
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options)
    graph = onnx.load(options.optimized_model_filepath).graph
    return session.run(None, feeds)[0], Counter(node.op_type for node in graph.node)


def relative(y: Array, expected: Array) -> float:
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))


def calibration(model: ir.Model, feeds: list[dict[str, Array]]) -> Calibration:
    return Calibration(feeds, InferenceSession(model).get_inputs())


@pytest.mark.parametrize(("bits", "most"), [(8, 0.02), (4, 0.2), (2, 0.8)])
def test_layers_are_fused_and_near_the_float_model(bits: int, most: float, tmp_path: Path) -> None:
    model, feeds = perceptron(), {"x": _RNG.normal(size=(5, 64)).astype(np.float32)}
    [expected] = InferenceSession(model).run(None, feeds)
    quantizer = WeightQuantizer(model, calibration(model, [feeds] * 2), bits=bits)
    assert len(quantizer.plan) == 3
    y, operators = run(quantizer.write(quantizer.plan), feeds, tmp_path / "m.onnx")
    assert operators["MatMulNBits"] == 3 and not operators["DequantizeLinear"]
    assert relative(y, expected) < most
    assert bool(quantizer.notes) == (bits == 2)


@pytest.mark.parametrize("opset", [13, 18, 21, 24])
def test_models_of_every_opset_are_written_for_stock_engines(opset: int, tmp_path: Path) -> None:
    model, feeds = perceptron(opset), {"x": noise(3, 64)}
    quantizer = WeightQuantizer(model)
    written = quantizer.write(quantizer.plan)
    assert written.opset_imports[""] == 21
    assert run(written, feeds, tmp_path / "m.onnx")[1]["MatMulNBits"] == 3


def test_gptq_is_nearer_than_rtn_on_the_calibration_data(tmp_path: Path) -> None:
    model = perceptron()
    mixed = (_RNG.normal(size=(200, 8)) @ _RNG.normal(size=(8, 64))).astype(np.float32)
    feeds = {"x": mixed}
    [expected] = InferenceSession(model).run(None, feeds)
    errors = {}
    for method in ("rtn", "gptq"):
        quantizer = WeightQuantizer(model, calibration(model, [feeds]), method=method)
        assert {format.method for format in quantizer.plan.values()} == {method}
        y, _ = run(quantizer.write(quantizer.plan), feeds, tmp_path / "m.onnx")
        errors[method] = relative(y, expected)
    assert errors["gptq"] < errors["rtn"]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    model, feeds = perceptron(), {"x": noise(9, 64)}
    files = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for file in files:
        quantizer = WeightQuantizer(model, calibration(model, [feeds]))
        save(quantizer.write(quantizer.plan), file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_given_model_does_not_change() -> None:
    model = perceptron()
    before = ir.to_proto(model).SerializeToString()
    quantizer = WeightQuantizer(model)
    quantizer.write(quantizer.plan)
    assert ir.to_proto(model).SerializeToString() == before


def test_a_part_of_a_plan_leaves_the_other_nodes_alone(tmp_path: Path) -> None:
    quantizer = WeightQuantizer(perceptron())
    name = next(iter(quantizer.plan))
    written = quantizer.write({name: quantizer.plan[name]})
    operators = run(written, {"x": noise(2, 64)}, tmp_path / "m.onnx")[1]
    assert operators["MatMulNBits"] == 1
    assert not any(node.op_type == "DequantizeLinear" for node in quantizer.write({}).graph)


def test_a_plan_may_change_the_bits_of_a_node(tmp_path: Path) -> None:
    quantizer = WeightQuantizer(perceptron())
    plan = dict(quantizer.plan)
    first = next(iter(plan))
    plan[first] = NodeFormat(kind="weights", bits=8, block=32, method="mse")
    types = [v.dtype for v in quantizer.write(plan).graph.initializers.values()]
    assert types.count(ir.DataType.INT8) == 1 and types.count(ir.DataType.INT4) == 2


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_tied_table_is_stored_once(bits: int, tmp_path: Path) -> None:
    model, feeds = language_model(), {"tokens": np.array([[3, 99, 0], [5, 6, -1]])}
    [expected] = InferenceSession(model).run(None, feeds)
    quantizer = WeightQuantizer(model, bits=bits)
    groups = quantizer.groups(quantizer.plan)
    assert sorted(map(len, groups)) == [1, 2]
    written = quantizer.write(quantizer.plan)
    y, operators = run(written, feeds, tmp_path / "m.onnx")
    assert operators["MatMulNBits"] == 2
    assert relative(y, expected) < {8: 0.02, 4: 0.2, 2: 0.9}[bits]
    large = [v for v in written.graph.initializers.values() if v.const_value.size > 1500]  # type: ignore[union-attr]
    assert len(large) == 2


def test_a_head_that_was_exported_as_a_copy_shares_the_table() -> None:
    quantizer = WeightQuantizer(language_model(tied=False))
    assert sorted(map(len, quantizer.groups(quantizer.plan))) == [1, 2]


def test_weights_of_gguf_files_stay_exact(tmp_path: Path) -> None:
    """Blocks of 32 on a grid of 4 bits with offsets are written with their offsets."""
    rng = np.random.default_rng(0)
    q = rng.integers(0, 16, (48, 3, 32))
    q[..., 0], q[..., 1] = 0, 15
    d = rng.uniform(0.01, 0.02, (48, 3, 1)).astype(np.float16).astype(np.float32)
    m = rng.uniform(-0.2, -0.05, (48, 3, 1)).astype(np.float16).astype(np.float32)
    w = (d * q + m).reshape(48, 96).astype(np.float32)
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 7, 96))
    model = op.model(y=op.MatMul(x, op.initializer("w", w.T.copy())))
    feeds = {"x": rng.normal(size=(2, 7, 96)).astype(np.float32)}
    quantizer = WeightQuantizer(model)
    y, operators = run(quantizer.write(quantizer.plan), feeds, tmp_path / "m.onnx")
    assert operators["MatMulNBits"] == 1
    # kernels round the data to int8 in blocks: by at most half a step for each number
    steps = np.abs(feeds["x"].reshape(2, 7, 3, 32)).max(-1) / 127
    most = (steps[..., None, :] / 2 * np.abs(w).reshape(48, 3, 32).sum(-1)).sum(-1)
    assert (np.abs(y - feeds["x"] @ w.T) <= most + 1e-5).all()


def test_convolutions_are_groups_of_their_own(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 8, 9, 9))
    y = op.Conv(op.Relu(op.Conv(x, noise(16, 8, 3, 3))), noise(16, 4, 5, 5), group=4)
    model = op.model(y=y)
    feeds = {"x": noise(2, 8, 9, 9)}
    [expected] = InferenceSession(model).run(None, feeds)
    quantizer = WeightQuantizer(model, bits=8)
    assert [len(group) for group in quantizer.groups(quantizer.plan)] == [1, 1]
    assert (
        relative(run(quantizer.write(quantizer.plan), feeds, tmp_path / "m.onnx")[0], expected)
        < 0.02
    )


@pytest.mark.parametrize("average_bits", [3.0, 4.5, 6.0])
def test_average_bits_are_kept(average_bits: float) -> None:
    model = perceptron()
    quantizer = WeightQuantizer(model, average_bits=average_bits)
    written = quantizer.write(quantizer.plan)
    count = sum(v.const_value.size for v in model.graph.initializers.values())  # type: ignore[union-attr]
    nbytes = sum(v.const_value.nbytes for v in written.graph.initializers.values())  # type: ignore[union-attr]
    assert nbytes * 8 <= average_bits * count


def test_a_weight_that_is_read_in_two_layouts_counts_twice() -> None:
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 64))
    w = op.initializer("w", noise(64, 64))
    model = op.model(y=op.Add(op.MatMul(x, w), op.Gemm(x, w, transB=1)))
    quantizer = WeightQuantizer(model, average_bits=4.8)
    assert [format.bits for format in quantizer.plan.values()] == [4, 4]


def test_a_file_is_not_larger_than_asked_for(tmp_path: Path) -> None:
    for size in (16_000, 20_000, 60_000):
        quantizer = WeightQuantizer(perceptron(), size=size)
        save(quantizer.write(quantizer.plan), tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").stat().st_size <= size


def test_products_that_share_a_weight_are_fused(tmp_path: Path) -> None:
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", 5, 64))
    w = op.initializer("w", noise(64, 64))
    y = op.Add(op.MatMul(x, w), op.MatMul(op.Relu(x), w))
    model = op.model(y=y)
    feeds = {"x": noise(3, 5, 64)}
    quantizer = WeightQuantizer(model)
    assert [len(group) for group in quantizer.groups(quantizer.plan)] == [2]
    _, operators = run(quantizer.write(quantizer.plan), feeds, tmp_path / "m.onnx")
    assert operators["MatMulNBits"] == 2


def test_external_data_is_read_from_its_file(tmp_path: Path) -> None:
    ir.save(perceptron(), tmp_path / "m.onnx", external_data="m.data")
    before = (tmp_path / "m.data").read_bytes()
    quantizer = WeightQuantizer(load(tmp_path / "m.onnx"))
    assert len(quantizer.plan) == 3
    save(quantizer.write(quantizer.plan), tmp_path / "small.onnx")
    assert (tmp_path / "m.data").read_bytes() == before


def test_a_model_without_weights_has_an_empty_plan() -> None:
    op = OpBuilder()
    model = op.model(y=op.Relu(op.input("x", "float32", (2, 3))))
    quantizer = WeightQuantizer(model)
    assert quantizer.plan == {} and len(quantizer.write({}).graph) == 1


def test_refused_nodes_say_why() -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (2, 8))
    small = op.MatMul(x, op.initializer("w", noise(8, 8)))
    model = op.model(y=small)
    [reason] = WeightQuantizer(model).refused.values()
    assert reason == "its weight has 64 numbers: too few to save anything"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bits": 3}, "bits must be 8, 4 or 2, not 3"),
        ({"block": 24}, "block must be a power of 2"),
        ({"method": "magic"}, "method must be one of"),
        ({"method": "gptq"}, "gptq measures the layers' inputs"),
        ({"average_bits": 4, "size": 10}, "exclude each other"),
        ({"size": 100}, "in the smallest formats"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        WeightQuantizer(perceptron(), **options)


def test_nodes_that_are_not_in_the_plan_are_refused() -> None:
    quantizer = WeightQuantizer(perceptron())
    with pytest.raises(OptionError, match="node 'nothing' has no weight"):
        quantizer.write({"nothing": NodeFormat(kind="weights", bits=4, block=32)})


def test_a_table_that_is_read_at_computed_places_opens_within_the_limits() -> None:
    """Places that depend only on an input's shape, as BERT's positions do."""
    op = OpBuilder(opset=18)
    x = op.input("x", "float32", ("batch", "time", 384))
    places = op.initializer("places", np.arange(512)[None])
    time = op.Shape(x, start=1, end=2)
    found = op.Slice(places, np.array([0]), time, np.array([1]))
    table = op.initializer("table", noise(512, 384))
    model = op.model(y=op.Add(x, op.Gather(table, found)))
    quantizer = WeightQuantizer(model)
    data = to_proto(quantizer.write(quantizer.plan)).SerializeToString()
    feeds = {"x": np.zeros((2, 7, 384), np.float32)}
    [y] = InferenceSession(data).run(None, feeds)
    assert relative(y[1], noise(512, 384)[:7]) < 0.15
