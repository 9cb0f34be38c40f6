"""HalfQuantizer: weights stored in 16 bits, nodes that compute in 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.compress.calibration import Calibration
from onward.compress.quantization.half.quantizer import HalfQuantizer
from onward.errors import OptionError
from onward.graph.scopes import graphs_of, walk

Array = np.ndarray[Any, Any]


def weights(*shape: int, seed: int = 0, scale: float = 0.1) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def two_layers(w: Array | None = None, v: Array | None = None) -> ir.Model:
    """softmax(relu(x w) v)"""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 32))
    hidden = op.Relu(op.MatMul(x, op.initializer("w", weights(32, 48) if w is None else w)))
    v = weights(48, 16, seed=1) if v is None else v
    return op.model(y=op.Softmax(op.MatMul(hidden, op.initializer("v", v))))


def parse(text: str, opset: int = 17, **tensors: Array) -> onnx.ModelProto:
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in tensors.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def error(original: Any, changed: Any, feeds: dict[str, Array], provider: str = "cpu") -> float:
    """The relative error of the first output; its type must be the original's."""
    [y, *_] = onward.InferenceSession(original, providers=["cpu"]).run(None, feeds)
    [z, *_] = onward.InferenceSession(changed, providers=[provider]).run(None, feeds)
    assert y.dtype == z.dtype
    return float(np.linalg.norm(y - z) / np.linalg.norm(y))


def types(model: ir.Model) -> dict[str, str]:
    found = (v for graph in graphs_of(model) for v in graph.initializers.values())
    return {str(v.name): v.const_value.dtype.name for v in found if v.const_value is not None}


def operators_after_loading(model: ir.Model, folder: Path) -> list[str]:
    """The operators of stock onnxruntime's optimised graph."""
    onward.save(model, folder / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(folder / "m.onnx", options, ["CPUExecutionProvider"])
    return [
        node.op_type for node in walk(onward.load(folder / "optimised.onnx", any_domain=True).graph)
    ]


@pytest.mark.parametrize(("kind", "most"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_stored_weights_are_widened_once_at_load(kind: str, most: float, tmp_path: Path) -> None:
    model = two_layers()
    quantizer = HalfQuantizer(model, None, kind=kind)
    assert quantizer.stores and len(quantizer.plan) == 2 and not quantizer.refused
    stored = quantizer.write(quantizer.plan)
    assert types(stored) == {"w": kind.upper(), "v": kind.upper()}
    assert "Cast" not in operators_after_loading(stored, tmp_path)
    onward.save(model, tmp_path / "float.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 0.6 * (tmp_path / "float.onnx").stat().st_size
    assert 0 < error(model, stored, {"x": weights(4, 32, scale=1.0)}) < most


def test_original_is_unchanged_and_the_same_plan_gives_the_same_bytes() -> None:
    model = two_layers()
    before = ir.to_proto(model).SerializeToString()
    quantizer = HalfQuantizer(model, None)
    first, second = quantizer.write(quantizer.plan), quantizer.write(quantizer.plan)
    assert ir.to_proto(first).SerializeToString() == ir.to_proto(second).SerializeToString()
    assert ir.to_proto(model).SerializeToString() == before


def test_a_part_of_the_plan_stores_a_part_of_the_weights() -> None:
    quantizer = HalfQuantizer(two_layers(), None)
    first, *_ = quantizer.plan
    written = quantizer.write({first: quantizer.plan[first]})
    assert types(written) == {"w": "FLOAT16", "v": "FLOAT"}
    assert types(quantizer.write({})) == {"w": "FLOAT", "v": "FLOAT"}


def test_nodes_that_share_a_weight_are_one_group() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 32))
    w = op.initializer("w", weights(32, 32))
    model = op.model(y=op.Tanh(op.MatMul(op.MatMul(x, w), w)))
    quantizer = HalfQuantizer(model, None)
    names = list(quantizer.plan)
    assert quantizer.groups(quantizer.plan) == [names] and len(names) == 2
    assert types(quantizer.write({names[0]: quantizer.plan[names[0]]})) == {"w": "FLOAT"}


@pytest.mark.parametrize(
    ("w", "why"),
    [
        (weights(32, 48) * 1e7, "beyond float16's 65504"),
        (weights(32, 48) * 1e-7, "smallest normal"),
    ],
    ids=["large", "small"],
)
def test_weights_outside_of_float16_stay_float32(w: Array, why: str) -> None:
    model = two_layers(w)
    quantizer = HalfQuantizer(model, None)
    assert len(quantizer.plan) == 1 and why in " ".join(quantizer.refused.values())
    assert types(quantizer.write(quantizer.plan)) == {"w": "FLOAT", "v": "FLOAT16"}
    assert HalfQuantizer(model, None, kind="bfloat16").refused == {}


def test_weights_in_branches_and_constants_of_opset_7_are_stored(tmp_path: Path) -> None:
    then = parse("t () => (float[N, 32] b) { b = MatMul(x, w) }").graph
    w = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights(32, 32)))
    then.node.insert(0, w)
    other = parse("e () => (float[N, 32] c) { c = Neg(x) }").graph
    branch = helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    graph = helper.make_graph(
        [branch], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32]),
         helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 32])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)
    for kind in ("float16", "bfloat16"):
        quantizer = HalfQuantizer(model, None, kind=kind)
        stored = quantizer.write(quantizer.plan)
        assert kind.upper() in types(stored).values()
        feeds = {"x": weights(4, 32), "flag": np.array(True)}
        assert 0 < error(model, stored, feeds) < 8e-3
        assert "Cast" not in operators_after_loading(stored, tmp_path)


def test_scales_inputs_and_outputs_stay_float32() -> None:
    model = parse(
        """g (float[2, 64] x, float[64] b) => (float[2, 64] y, float[64] table) {
        q = DequantizeLinear <axis = 1> (w, scale)
        z = Add(x, q)
        y = Add(z, b)
        table = Identity(b) }""",
        scale=np.abs(weights(64)) + 0.1, b=weights(64), w=np.ones((2, 64), np.int8),
    )  # fmt: skip
    quantizer = HalfQuantizer(model, None)
    reasons = " ".join(quantizer.refused.values())
    assert not quantizer.plan and "a scale of DequantizeLinear" in reasons
    assert "a feed may replace it" in reasons


def test_a_model_with_nothing_to_store_is_written_as_it_is() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    quantizer = HalfQuantizer(model, None)
    assert not quantizer.plan and not quantizer.refused
    assert error(model, quantizer.write({}), {"x": weights(8)}) == 0


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(OptionError, match="kind must be one of float16, bfloat16, not 'float8'"):
        HalfQuantizer(two_layers(), None, kind="float8")


# -- computing in 16 bits --------------------------------------------------------------------------


def computed(model: Any, calibration: Calibration | None = None, kind: str = "float16") -> Any:
    quantizer = HalfQuantizer(model, calibration, kind=kind, provider="cuda")
    assert not quantizer.stores
    return quantizer, quantizer.write(quantizer.plan)


def test_nodes_compute_in_float16_between_casts_at_the_edges() -> None:
    model = two_layers()
    quantizer, written = computed(model)
    assert [n.op_type for n in written.graph] == [
        "Cast", "MatMul", "Relu", "MatMul", "Cast", "Softmax",
    ]  # fmt: skip
    assert set(types(written).values()) == {"FLOAT16"}
    assert "Softmax loses too much" in " ".join(quantizer.refused.values())
    onnx.checker.check_model(ir.to_proto(written), full_check=True)
    assert 0 < error(model, written, {"x": weights(4, 32, scale=1.0)}) < 2e-3


def test_bfloat16_computes_in_torch() -> None:
    model = two_layers()
    _, written = computed(model, kind="bfloat16")
    onnx.checker.check_model(ir.to_proto(written), full_check=True)
    assert 0 < error(model, written, {"x": weights(4, 32, scale=1.0)}, "torch") < 2e-2


def test_measured_ranges_keep_overflowing_nodes_in_float32() -> None:
    model = two_layers(weights(32, 48, scale=30.0))
    feeds = {"x": weights(4, 32, scale=1000.0)}
    calibration = Calibration([feeds], onward.InferenceSession(model).get_inputs())
    quantizer, written = computed(model, calibration)
    assert "beyond float16's 65504" in " ".join(quantizer.refused.values())
    assert np.isfinite(error(model, written, feeds))


def test_masks_are_clamped_and_shapes_stay_integers() -> None:
    lowest = np.array(np.finfo(np.float32).min, np.float32)
    model = parse(
        """g (float[N, 32] x, bool[N, 32] keep) => (float[N, 32] y, int64[2] size) {
        h = MatMul(x, w)
        m = Where(keep, h, lowest)
        size = Shape(h)
        y = Relu(m) }""",
        w=weights(32, 32), lowest=lowest,
    )  # fmt: skip
    _, written = computed(model)
    onnx.checker.check_model(ir.to_proto(written), full_check=True)
    feeds = {"x": weights(2, 32), "keep": np.ones((2, 32), np.bool_)}
    assert error(model, written, feeds) < 2e-3
    clamped = [
        v for v in written.graph.initializers.values() if v.shape is not None and not len(v.shape)
    ]
    assert [float(v.const_value.numpy()) for v in clamped if v.const_value] == [-65504.0]


def test_scales_of_resize_stay_float32_and_bodies_change() -> None:
    model = parse(
        """g (float[1, 4, 8, 8] x) => (float[1, 4, 16, 16] y) {
        h = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
        y = Resize <mode = "nearest"> (h, , scales) }""",
        w=weights(4, 4, 3, 3), scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip
    quantizer, written = computed(model)
    assert types(written)["scales"] == "FLOAT" and len(quantizer.plan) == 1
    assert error(model, written, {"x": weights(1, 4, 8, 8)}) < 2e-3


def test_nodes_that_only_move_data_are_not_cast() -> None:
    model = parse("g (float[N, 32] x) => (float[32, N] y) { y = Transpose <perm = [1, 0]> (x) }")
    quantizer, written = computed(model)
    assert not quantizer.plan and "Casts would cost more" in " ".join(quantizer.refused.values())
    assert [node.op_type for node in written.graph] == ["Transpose"]
