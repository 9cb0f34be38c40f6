"""Each departure of stock onnxruntime is real (or this fails and the row can go), and avoided."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from conformance import nodes
from onward.graph.builder import OpBuilder
from onward.providers.ort.defects import adds_in_half, defect
from onward.sessions.parts import Parts
from tests.models import serialized

# A node test of ONNX's that stock onnxruntime fails for each row of the table.
ROWS = {
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


@pytest.mark.parametrize("name", ROWS.values(), ids=ROWS)
def test_the_defect_is_still_there_and_the_default_avoids_it(name: str) -> None:
    case = nodes.load()[name]
    (node,) = ir.from_proto(case.model).graph
    assert defect(node)
    data = case.model.SerializeToString()
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert differs(run(theirs, case), case)
    assert not differs(run(onward.InferenceSession(data), case), case)


def test_a_scan_that_returns_its_input_is_a_defect() -> None:
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


def test_a_named_provider_is_taken_at_its_word() -> None:
    data = nodes.load()["test_dft"].model.SerializeToString()
    session = onward.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_plain_nodes_have_no_defect() -> None:
    for node in (
        onnx.helper.make_node("Relu", ["x"], ["y"]),
        onnx.helper.make_node("Resize", ["x"], ["y"]),
    ):
        assert defect(ir.from_proto(node)) is None


@pytest.mark.parametrize("inside", [False, True])
def test_float16_products_are_summed_right_by_default(inside: bool) -> None:
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
    assert (named.run(None, feeds)[0].tolist() == [[4096]]) != adds_in_half()


def test_an_operator_that_fails_while_it_runs_moves_to_another_provider() -> None:
    case = nodes.load()["test_reduce_max_empty_set_bool"]
    options = onward.SessionOptions(log_severity_level=4)
    session = onward.InferenceSession(case.model.SerializeToString(), options)
    assert not differs(run(session, case), case)
    assert isinstance(session._plan, Parts)
    assert not differs(run(session, case), case)


def test_with_fallback_disabled_the_failure_is_told() -> None:
    case = nodes.load()["test_reduce_max_empty_set_bool"]
    options = onward.SessionOptions(log_severity_level=4, disable_fallback=True)
    session = onward.InferenceSession(case.model.SerializeToString(), options)
    with pytest.raises(onward.OnwardError, match="while running ReduceMax node"):
        run(session, case)


def test_feeds_that_no_provider_accepts_keep_the_first_error() -> None:
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
