"""Each defect of OpenVINO exists where it was seen (or its row can be removed), and is avoided.

Where it was tried and not seen, OpenVINO has the node and gives the right answer.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from conformance import nodes
from onward.errors import ProviderError
from onward.passes.pipelines import PREPARE
from onward.providers.defect import ARM, TESTED_ARCHITECTURES, X86, Platform
from onward.providers.openvino.defects import ROWS, defect, merged_casts
from onward.providers.openvino.provider import OpenVINOProvider, make_openvino, platform_of
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

HERE = platform_of("CPU")
FED = "sizes that are fed may be 0, which crashes the process"
ZERO = "a size that is 0 crashes the process"
TRIED = HERE.architecture in TESTED_ARCHITECTURES and HERE.version_tuple >= (2026, 4)

# Node tests of ONNX's that OpenVINO, given the node as it is, fails.
FIXED = [
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
    "test_top_k_same_values_2d",
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
IMAGE = np.arange(16.0).reshape(1, 1, 4, 4)
UP = [0, 1, 1, 2, 2, 3, 3, 3]  # half of 0 to 7, rounded up
# What no test of ONNX's shows: a graph of one node, a feed, and what ONNX would give.
GRAPHS = {
    "Log": ("g (float[n] x) => (float[n] y) { y = Log(x) }", [0.0] * 8, [-np.inf] * 8),
    "Softplus": ("g (float[n] x) => (float[n] y) { y = Softplus(x) }", [-13.5], [1.37e-6]),
    "ThresholdedRelu": ("g (float[n] x) => (float[n] y) { y = ThresholdedRelu(x) }", [300], [300]),
    "Resize by round_prefer_ceil": (
        "g (float[1, 1, m, n] x) => (float[1, 1, 8, 8] y) <int64[4] sizes = {1, 1, 8, 8}> "
        '{ y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", '
        'nearest_mode = "round_prefer_ceil">(x, , , sizes) }',
        IMAGE,
        IMAGE[:, :, UP][:, :, :, UP],
    ),
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
        arrays = [np.asarray(nodes.read(feed)) for feed in feeds]
        results = provider()._compile(model).run(arrays)
        with np.errstate(all="ignore"):  # what is wrong may be any number
            for got, expected in zip(results, map(nodes.read, wanted), strict=True):
                nodes.check(got, expected, case)
    except (AssertionError, ProviderError):
        return True
    return False


def is_refused(model: ir.Model, place: Platform = HERE) -> bool:
    """Whether a node is refused for its answer, and not only for sizes that may be fed."""
    reasons = {defect(node, place) for node in model.graph}
    return bool(reasons - {None, FED, ZERO})


def check_row(model: ir.Model, name: str) -> None:
    """A node is refused where OpenVINO gets it wrong, and nowhere else."""
    if is_refused(model):
        assert not provider().takes(model)
    if TRIED:
        assert is_wrong(model, name) == is_refused(model)


@pytest.mark.parametrize("name", FIXED)
def test_defect_exists_and_its_node_is_refused(name: str) -> None:
    check_row(prepared(name, free=False), name)


@pytest.mark.parametrize("name", [*FIXED, *FREE])
def test_defect_holds_on_an_architecture(name: str) -> None:
    model = prepared(name, free=name in FREE)
    assert any(is_refused(model, Platform("2026.4.1", each)) for each in TESTED_ARCHITECTURES)


# What one architecture's plugin gets wrong and the other's right.
SEEN_ON = {
    ARM: [
        "test_attention_4d_causal_nonpad_negative_offset_structural_empty",
        "test_averagepool_2d_dilations",
        "test_log",
        "test_lppool_2d_dilations",
        "test_maxpool_2d_dilations",
        "test_qlinearmatmul_2D_int8_float32",
        "test_quantizelinear_int16",
        "test_reduce_log_sum_empty_set",
        "test_reduce_log_sum_exp_empty_set",
        "test_resize_downsample_scales_nearest",
        "test_thresholdedrelu",
    ],
    X86: ["test_top_k_same_values", "test_top_k_same_values_2d", "test_top_k_same_values_largest"],
}


@pytest.mark.parametrize(
    ("name", "seen"), [(name, each) for each in SEEN_ON for name in SEEN_ON[each]]
)
def test_node_is_refused_only_where_the_defect_was_seen(name: str, seen: str) -> None:
    model = prepared(name, free=name in FREE)
    refused = [
        each for each in TESTED_ARCHITECTURES if is_refused(model, Platform("2026.4.1", each))
    ]
    assert refused == [seen]
    unknown = Platform("2026.4.1", "riscv64")
    assert is_refused(model, unknown)  # it was not tried


@pytest.mark.parametrize("architecture", TESTED_ARCHITECTURES)
def test_provider_uses_the_given_platform(architecture: str) -> None:
    model = parsed("g (float[4] x) => (float[4] y) { y = Log(x) }")
    given = OpenVINOProvider("CPU", {"PERF_COUNT": False}, Platform("2026.4.1", architecture))
    assert given.takes(model) == (architecture == X86)
    assert given.supports(next(iter(model.graph)), {"": 21}) == (architecture == X86)


def test_untested_devices_have_every_defect() -> None:
    assert platform_of("CPU").architecture in (*TESTED_ARCHITECTURES, platform.machine())
    assert all(row.holds(platform_of("GPU.0")) for rows in ROWS.values() for row in rows)


def test_resize_with_fed_sizes_is_refused() -> None:
    model = parsed(
        "g (float[1, 1, n, n] x, int64[4] s) => (float[a, b, c, d] y) "
        '{ y = Resize<mode = "linear">(x, , , s) }'
    )
    assert defect(next(iter(model.graph)), HERE) == FED
    assert not provider().takes(model)


@pytest.mark.parametrize("architecture", [ARM, X86])
def test_col2im_with_fed_sizes_is_refused_on_x86(architecture: str) -> None:
    """Not run: x86 traps the division by zero, ARM gives 0."""
    model = prepared("test_col2im", free=False)
    found = defect(next(iter(model.graph)), Platform("2026.4", architecture))
    assert found == (ZERO if architecture == X86 else None)


def test_tile_with_computed_repeats_is_refused() -> None:
    model = prepared("test_tile", free=False)
    assert is_refused(model)
    assert not provider().takes(model)


@pytest.mark.parametrize("name", FREE)
def test_defect_with_dynamic_shapes_exists_and_its_node_is_refused(name: str) -> None:
    check_row(prepared(name, free=True), name)


@pytest.mark.parametrize("name", GRAPHS)
def test_defect_without_an_onnx_test_exists(name: str) -> None:
    graph, feed, wanted = GRAPHS[name]
    model = parsed(graph)
    [got] = provider()._compile(model).run([np.asarray(feed, np.float32)])
    right = got.shape == np.shape(wanted) and np.allclose(got, wanted, rtol=1e-2, atol=1e-9)
    if TRIED:
        assert right != is_refused(model)


# Readers of w[in, out], and the axis of w that they sum over.
PRODUCTS = {
    "y = MatMul(x, d)": 0,
    "y = Gemm(x, d)": 0,
    "t = Transpose<perm = [1, 0]>(d)  y = Gemm<transB = 1>(x, t)": 0,
    "t = Transpose<perm = [1, 0]>(d)  y = MatMul(z, t)": 1,
    "y = Gemm<transB = 1>(z, d)": 1,
    "t = Identity(d)  y = MatMul(x, t)": 0,
    'y = Einsum<equation = "bi,io->bo">(x, d)': 0,
    'y = Einsum<equation = "io,bo->bi">(d, z)': 1,
}


def scaled(product: str, axis: int, blocks: bool) -> tuple[ir.Model, dict[str, Any], Any]:
    """A product of a stored weight with scales along an axis, its feed, and its result."""
    rng, sizes = np.random.default_rng(0), (16, 8)
    w = rng.integers(-64, 64, sizes)
    shape = [1, 1]
    shape[axis] = sizes[axis]
    s = rng.uniform(0.5, 2, shape).astype(np.float32)
    own = tuple(shape) if blocks else (sizes[axis],)
    attributes = (
        f"axis = {1 - axis}, block_size = {sizes[1 - axis]}" if blocks else f"axis = {axis}"
    )
    listed = ", ".join(map(str, own))
    numbers, scales = (", ".join(map(str, each.flat)) for each in (w, s))
    model = parsed(
        "g (float[n, 16] x, float[n, 8] z) => (float[n, m] y) "
        f"<int8[16, 8] w = {{{numbers}}}, float[{listed}] s = {{{scales}}}> "
        f"{{ d = DequantizeLinear<{attributes}>(w, s)  {product} }}"
    )
    x, z = (rng.normal(size=(3, n)).astype(np.float32) for n in sizes)
    wide = w * s
    return model, {"x": x, "z": z}, x @ wide if "(x" in product else z @ wide.T


@pytest.mark.parametrize("blocks", [False, True], ids=["vector", "blocks"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("product", PRODUCTS)
def test_scales_of_summed_inputs_are_refused(product: str, axis: int, blocks: bool) -> None:
    model, feeds, wanted = scaled(product, axis, blocks)
    assert is_refused(model, Platform("2026.4.1", X86)) == (axis == PRODUCTS[product])
    session = InferenceSession(model, providers=["openvino"])
    got = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})[0]
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-2)


def test_the_defect_of_scales_of_summed_inputs_exists() -> None:
    model, feeds, wanted = scaled("y = MatMul(x, d)", 0, blocks=False)
    [got] = provider()._compile(model).run([feeds["x"], feeds["z"]])
    if TRIED:
        assert np.allclose(got, wanted, rtol=1e-3, atol=1e-2) != is_refused(model)


def test_merged_casts_have_arithmetic_as_only_reader() -> None:
    model = parsed(
        "g (float[n] x, int32[n] i) => (float[n] y, float[n] z) "
        "{ a = Cast<to = 1>(i)  y = Mul(x, a)  b = Cast<to = 1>(i)  z = Div(b, x) }"
    )
    assert [value.name for value in merged_casts(model.graph)] == ["a"]


def test_loop_is_refused_because_it_cannot_be_terminated() -> None:
    model: Any = parsed(
        "g (int64 trips, float[2] x) => (float[2] y) <bool go = {1}> { y = Loop(trips, go, x) "
        "<body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e) "
        "{ d = Identity(c)  e = Add(a, a) }> }"
    )
    [node] = model.graph
    assert defect(node, HERE) == "a run cannot be terminated inside it"
