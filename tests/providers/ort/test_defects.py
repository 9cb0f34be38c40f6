"""Each defect of stock onnxruntime exists (or its row can be removed), and is avoided."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import onward
from conformance import nodes
from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE
from onward.providers.defect import ARM, X86, Platform
from onward.providers.ort import defects
from onward.providers.ort.defects import ROWS, defect, operators_in_half
from onward.sessions import open_plan, plan_model
from onward.sessions.partitioned_plan import PartitionedPlan
from tests.models import serialized

# A node test of ONNX's that stock onnxruntime fails for each row of the table.
TESTS = {
    "DFT": "test_dft",
    "STFT": "test_stft",
    "MaxUnpool": "test_maxunpool_export_with_output_shape",
    "Resize": "test_resize_downsample_scales_linear_align_corners",
    "Attention": "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "Dropout": "test_training_dropout",
}


def run(session: Any, case: Any) -> list[Any]:
    feeds, _ = case.data_sets[0]
    arrays = [np.asarray(nodes.read(feed)) for feed in feeds]
    names = [arg.name for arg in session.get_inputs()]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))


def differs(results: list[Any], case: Any) -> bool:
    try:
        for got, wanted in zip(results, case.data_sets[0][1], strict=True):
            nodes.check(got, nodes.read(wanted), case)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("name", TESTS.values(), ids=TESTS)
def test_defect_exists_and_the_default_avoids_it(name: str) -> None:
    case = nodes.load()[name]
    (node,) = ir.from_proto(case.model).graph
    assert defect(node)
    data = case.model.SerializeToString()
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert differs(run(theirs, case), case)
    assert not differs(run(onward.InferenceSession(data), case), case)


def test_scan_that_returns_its_input_is_a_defect() -> None:
    """Garbage: which numbers it gives depends on what the memory held. test_loops.py runs it."""
    scan = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2] x, float[3, 2] rows) => (float[2] last, float[3, 2] y) {
            last, y = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] row)
                => (float[2] row2, float[2] OUT) {
                    row2 = Identity(row) copy = Identity(s) }>(x, rows)
        }"""
    found = []
    for returned in ("s", "copy"):
        model = onnx.parser.parse_model(scan.replace("OUT", returned))
        (node,) = ir.from_proto(model).graph
        found.append(defect(node) is not None)
    assert found == [True, False]


def test_named_provider_runs_nodes_with_defects() -> None:
    data = nodes.load()["test_dft"].model.SerializeToString()
    session = onward.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_other_nodes_have_no_defect() -> None:
    for node in (
        onnx.helper.make_node("Relu", ["x"], ["y"]),
        onnx.helper.make_node("Resize", ["x"], ["y"]),
    ):
        assert defect(ir.from_proto(node)) is None


@pytest.mark.parametrize("inside", [False, True])
def test_float16_products_are_summed_in_float32_by_default(inside: bool) -> None:
    """Whether the model takes float16 or only computes in it."""
    op = OpBuilder()
    dtype = "float32" if inside else "float16"
    a, b = op.input("a", dtype, (1, 4096)), op.input("b", dtype, (4096, 1))
    if inside:
        a, b = op.Cast(a, to=10), op.Cast(b, to=10)
    y = op.MatMul(a, b)
    model = op.model(y=op.Cast(y, to=1) if inside else y)
    ones = np.ones((1, 4096), dtype)
    feeds = {"a": ones, "b": ones.T}
    session = onward.InferenceSession(serialized(model))
    assert session.run(None, feeds)[0].tolist() == [[4096]]
    assert session.get_providers() == ["CPUExecutionProvider"]  # no other engine is needed
    named = onward.InferenceSession(serialized(model), providers=["CPUExecutionProvider"])
    assert (named.run(None, feeds)[0].tolist() == [[4096]]) != ("MatMul" in operators_in_half())


def half_attention() -> tuple[bytes, dict[str, Any]]:
    """Two keys whose scores, 2048 and 2049, are one number in float16."""
    op = OpBuilder(opset=23)
    shapes = {"q": (1, 1, 1, 2), "k": (1, 1, 2, 2), "v": (1, 1, 2, 1)}
    q, k, v = [op.input(name, "float16", shape) for name, shape in shapes.items()]
    values = ([2048, 1], [1, 0, 1, 1], [0, 1])
    feeds = {
        name: np.array(each, np.float16).reshape(shape)
        for (name, shape), each in zip(shapes.items(), values, strict=True)
    }
    return serialized(op.model(y=op.Attention(q, k, v, scale=1.0))), feeds


def test_float16_attention_has_float32_scores_by_default() -> None:
    model, feeds = half_attention()
    session = onward.InferenceSession(model)
    [y] = session.run(None, feeds)
    assert abs(y.item() - 0.731) < 1e-3
    named = onward.InferenceSession(model, providers=["CPUExecutionProvider"])
    [theirs] = named.run(None, feeds)
    assert (abs(theirs.item() - 0.731) > 1e-3) == ("Attention" in operators_in_half())


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("scores", [False, True])
def test_widening_depends_on_the_kernels(
    adds: bool, scores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defects, "_adds_in_half", lambda: adds)
    monkeypatch.setattr(defects, "_scores_in_half", lambda: scores)
    found = defects.operators_in_half.__wrapped__()
    assert ("MatMul" in found, "Conv" in found, "Attention" in found) == (adds, adds, scores)


def test_only_attention_is_widened_if_products_are_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on x86-64, where onnxruntime has no float16 products but such scores."""
    for module in (open_plan, plan_model):
        monkeypatch.setattr(module, "operators_in_half", lambda: frozenset({"Attention"}))
    model, feeds = half_attention()
    assert abs(onward.InferenceSession(model).run(None, feeds)[0].item() - 0.731) < 1e-3


# -- float64 Attention -------------------------------------------------------------------------


def double_attention(case: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {
        "q": rng.normal(size=(2, 3, 4, 8)),
        "k": rng.normal(size=(2, 3, 6, 8)),
        "v": rng.normal(size=(2, 3, 6, 8)),
    }
    inputs, attributes = ["q", "k", "v"], {}
    if case == "masked row":
        feeds["mask"] = rng.random((4, 6)) > 0.3
        feeds["mask"][1] = False
        inputs += ["mask"]
    if case == "counted keys":
        feeds["counts"] = np.array([4, 6])
        inputs += ["", "", "", "counts"]
        attributes = {"is_causal": 1}
    node = onnx.helper.make_node("Attention", inputs, ["y"], **attributes)
    declared = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in feeds.items()
    ]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)
    graph = onnx.helper.make_graph([node], "g", declared, [y])
    opset = [onnx.helper.make_opsetid("", 24)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), feeds


@pytest.mark.parametrize("case", ["plain", "masked row", "counted keys"])
def test_float64_attention_is_exact_by_default(case: str) -> None:
    model, feeds = double_attention(case)
    [wanted] = ReferenceEvaluator(model).run(None, feeds)
    data = model.SerializeToString()
    stock = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    [theirs] = stock.run(None, feeds)
    assert not np.allclose(theirs, wanted, rtol=1e-9, atol=1e-12)
    session = onward.InferenceSession(data)
    [ours] = session.run(None, feeds)
    np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-12)
    assert "TorchExecutionProvider" in session.get_providers()


def test_float64_attention_inside_a_float32_model() -> None:
    """Its type is known only once types are inferred."""
    op = OpBuilder(opset=23)
    x = op.input("x", "float32", (1, 2, 3, 4))
    wide = op.Cast(x, to=11)
    model = op.model(y=op.Cast(op.Attention(wide, wide, wide), to=1))
    session = onward.InferenceSession(serialized(model))
    assert "TorchExecutionProvider" in session.get_providers()
    rows = [defect(node) for node in PREPARE(model).graph]
    assert [row is not None for row in rows] == [False, True, False]


@pytest.mark.parametrize("architecture", [ARM, X86])
def test_defects_hold_on_every_architecture(architecture: str) -> None:
    """Those of onnxruntime were all seen on both."""
    assert all(row.holds(Platform("1.31.1", architecture)) for row in ROWS)


def test_operator_that_fails_at_run_time_moves_to_another_provider() -> None:
    case = nodes.load()["test_reduce_max_empty_set_bool"]
    options = onward.SessionOptions(log_severity_level=4)
    session = onward.InferenceSession(case.model.SerializeToString(), options)
    assert not differs(run(session, case), case)
    assert isinstance(session._plan, PartitionedPlan)
    assert not differs(run(session, case), case)


def test_failure_is_raised_if_fallback_is_disabled() -> None:
    case = nodes.load()["test_reduce_max_empty_set_bool"]
    options = onward.SessionOptions(log_severity_level=4, disable_fallback=True)
    session = onward.InferenceSession(case.model.SerializeToString(), options)
    with pytest.raises(onward.OnwardError, match="while running ReduceMax node"):
        run(session, case)


def test_feeds_that_no_provider_accepts_raise_the_first_error() -> None:
    op = OpBuilder()
    data, index = op.input("data", "float32", (3,)), op.input("index", "int64", (1,))
    session = onward.InferenceSession(
        op.model(y=op.Gather(data, index)), onward.SessionOptions(log_severity_level=4)
    )
    feeds = {"data": np.zeros(3, np.float32), "index": np.array([7])}
    for _ in range(2):
        with pytest.raises(onward.OnwardError, match=r"onnxruntime failed: .*Gather"):
            session.run(None, feeds)
    feeds["index"] = np.array([1])
    assert session.run(None, feeds)[0].tolist() == [0]
