"""Each departure of OpenVINO is real (or this fails and the row can go), and avoided."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from conformance import nodes
from onward.errors import ProviderError
from onward.passes.pipelines import PREPARE
from onward.providers.openvino.defects import defect, merged_casts
from onward.providers.openvino.provider import OpenVINOProvider, make_openvino
from onward.providers.options import SessionOptions

# Node tests of ONNX's that OpenVINO, given the node as it is, fails.
ROWS = [
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_causal_nonpad_negative_offset_structural_empty",
    "test_dft_axis",
    "test_gru_batchwise",
    "test_lstm_batchwise",
    "test_lstm_with_peepholes",
    "test_maxpool_2d_ceil_output_size_reduce_by_one",
    "test_qlinearmatmul_2D_int8_float32",
    "test_quantizelinear_int16",
    "test_reduce_log_sum_empty_set",
    "test_reduce_log_sum_exp_empty_set",
    "test_reduce_max_empty_set",
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_linear_antialias",
    "test_resize_downsample_scales_cubic_A_n0p5_exclude_outside",
    "test_resize_downsample_scales_nearest",
    "test_resize_downsample_sizes_nearest_not_larger",
    "test_roialign_mode_max",
    "test_simple_rnn_batchwise",
    # test_tile is not run: it reads memory that is not the tensor's
]
# The same, but only where no size is fixed.
FREE = [
    "test_attention_4d_gqa",
    "test_averagepool_2d_dilations",
    "test_lppool_2d_dilations",
    "test_maxpool_2d_dilations",
    "test_prelu_broadcast",
    "test_quantizelinear_axis",
    "test_split_1d_uneven_split_opset18",
]
# What no test of ONNX's shows: a graph of one node, a feed, and what ONNX would give.
GRAPHS = {
    "Log": ("g (float[n] x) => (float[n] y) { y = Log(x) }", [0.0] * 8, [-np.inf] * 8),
    "Softplus": ("g (float[n] x) => (float[n] y) { y = Softplus(x) }", [-13.5], [1.37e-6]),
    "ThresholdedRelu": ("g (float[n] x) => (float[n] y) { y = ThresholdedRelu(x) }", [300], [300]),
    "an empty constant": (
        "g (float[n] x) => (float[m] y) <int64[0] none = {}> { y = Gather(x, none) }",
        [1.0, 2.0],
        [],
    ),
}


def provider() -> OpenVINOProvider:
    return make_openvino({}, SessionOptions())


def parsed(graph: str) -> ir.Model:
    text = f'<ir_version: 10, opset_import: ["" : 21]> {graph}'
    return PREPARE(ir.from_proto(onnx.parser.parse_model(text)))


def prepared(name: str, *, free: bool) -> ir.Model:
    proto = onnx.ModelProto()
    proto.CopyFrom(nodes.load()[name].model)
    for number, value in enumerate((*proto.graph.input, *proto.graph.output)):
        for place, size in enumerate(value.type.tensor_type.shape.dim if free else ()):
            size.dim_param = f"size_{number}_{place}"
    return PREPARE(ir.from_proto(proto))


def is_wrong(model: ir.Model, name: str) -> bool:
    """Whether OpenVINO, not asked whether it should, fails this test."""
    case = nodes.load()[name]
    feeds, wanted = case.data_sets[0]
    try:
        results = provider()._compile(model).run([np.asarray(nodes.read(feed)) for feed in feeds])
        with np.errstate(all="ignore"):  # what is wrong may be any number
            for got, expected in zip(results, map(nodes.read, wanted), strict=True):
                nodes.check(got, expected, case)
    except (AssertionError, ProviderError):
        return True
    return False


@pytest.mark.parametrize("name", ROWS)
def test_a_departure_is_real_and_its_node_refused(name: str) -> None:
    model = prepared(name, free=False)
    assert any(defect(node) for node in model.graph)
    assert not any(map(provider().takes, [model]))
    assert is_wrong(model, name)


def test_repeats_that_are_computed_are_refused_without_a_try() -> None:
    model = prepared("test_tile", free=False)
    assert any(defect(node) for node in model.graph)
    assert not provider().takes(model)


@pytest.mark.parametrize("name", FREE)
def test_a_departure_where_sizes_are_free_is_real_and_its_node_refused(name: str) -> None:
    model = prepared(name, free=True)
    assert any(defect(node) for node in model.graph)
    assert is_wrong(model, name)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_no_test_of_onnx_shows_is_real_too(name: str) -> None:
    graph, feed, wanted = GRAPHS[name]
    model = parsed(graph)
    assert any(defect(node) for node in model.graph)
    [got] = provider()._compile(model).run([np.asarray(feed, np.float32)])
    assert got.shape != np.shape(wanted) or not np.allclose(got, wanted, rtol=1e-2, atol=1e-9)


def test_merged_casts_are_those_that_arithmetic_alone_reads() -> None:
    model = parsed(
        "g (float[n] x, int32[n] i) => (float[n] y, float[n] z) "
        "{ a = Cast<to = 1>(i)  y = Mul(x, a)  b = Cast<to = 1>(i)  z = Div(b, x) }"
    )
    assert [value.name for value in merged_casts(model.graph)] == ["a"]


def test_a_loop_is_refused_because_it_cannot_be_ended() -> None:
    model: Any = parsed(
        "g (int64 trips, float[2] x) => (float[2] y) <bool go = {1}> { y = Loop(trips, go, x) "
        "<body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e) "
        "{ d = Identity(c)  e = Add(a, a) }> }"
    )
    [node] = model.graph
    assert defect(node) == "a run cannot be ended inside it"
