"""Every adapter preserves the outputs of onnxruntime on the old model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented

from onward.errors import UnsupportedModel
from onward.passes.pipelines import PREPARE
from onward.passes.upgrade import ADAPTERS, is_compatible, newest_opset, versions_of
from onward.passes.upgrades.unchanged_operators import COMPATIBLE, NEWEST
from tests.passes.running import assert_same, run_ort, run_reference

rng = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """One old node: its opset, inputs (None is omitted) and attributes."""

    operator: str
    opset: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    constants: tuple[int, ...] = ()  # inputs that are initializers
    why: str = ""

    def __str__(self) -> str:
        return f"{self.operator}-{self.opset}{' ' if self.why else ''}{self.why}"


x34, x234, image = real(3, 4), real(2, 3, 4), real(2, 3, 4, 5)
CASES = [
    Case("Slice", 9, (image,), {"starts": [1, -3], "ends": [3, 100], "axes": [2, 3]}),
    Case("Slice", 7, (x34,), {"starts": [0, 1], "ends": [2, 3]}, why="all axes"),
    Case("TopK", 9, (x34,), {"k": 2, "axis": 1}, 2),
    Case("Clip", 7, (x34,), {"min": -0.5, "max": 0.5}),
    Case("Clip", 10, (x34,), {"max": 0.5}, why="one bound"),
    Case("Clip", 8, (x34,), {}, why="no bounds"),
    Case("Pad", 7, (x34,), {"pads": [1, 0, 2, 1], "value": 1.5}),
    Case("Pad", 10, (x34,), {"pads": [1, 0, 2, 1], "mode": "reflect"}),
    Case("Dropout", 7, (x34,), {"ratio": 0.3}),
    Case("Squeeze", 7, (real(1, 3, 1, 2),), {"axes": [0, 2]}),
    Case("Squeeze", 11, (real(1, 3, 1, 2),), {}, why="all"),
    Case("Unsqueeze", 11, (x34,), {"axes": [0, -1]}),
    Case("ReduceSum", 11, (x234,), {"axes": [-1, 0], "keepdims": 0}),
    Case("ReduceSum", 7, (x234,), {}, why="all axes"),
    Case("ReduceMean", 17, (x234,), {"axes": [1]}),
    Case("ReduceL1", 11, (x234,), {"axes": [1]}),
    Case("ReduceL2", 13, (x234,), {"axes": [2], "keepdims": 0}),
    Case("ReduceMax", 12, (x234,), {"axes": [2]}),
    Case("ReduceMin", 7, (x234,), {}),
    Case("ReduceProd", 11, (x234,), {"axes": [0]}),
    Case("ReduceSumSquare", 17, (x234,), {"axes": [0, 1]}),
    Case("ReduceLogSum", 13, (abs(x234),), {"axes": [0]}),
    Case("ReduceLogSumExp", 13, (x234,), {"axes": [0]}),
    Case("ReduceLogSum", 13, (np.arange(1, 7, dtype=np.int32).reshape(2, 3),), {}, why="integers"),
    Case("Split", 11, (x34,), {"axis": 1, "split": [1, 3]}, 2),
    Case("Split", 7, (x34,), {"axis": 1}, 2, why="even"),
    Case("Split", 13, (x34,), {"axis": -1}, 2, why="even"),
    Case("Split", 13, (x34, np.array([1, 3])), {"axis": -1}, 2, (1,), why="sizes"),
    Case("DFT", 17, (real(2, 8, 1),), {"onesided": 1}),
    Case("DFT", 17, (real(2, 3, 8, 1), np.array(6)), {"axis": 2}, 1, (1,), why="length"),
    Case("Softmax", 11, (image,), {"axis": 2}),
    Case("Softmax", 7, (image,), {}, why="default axis"),
    Case("Softmax", 12, (image,), {"axis": -1}, why="last axis"),
    Case("Softmax", 9, (x34,), {"axis": 0}, why="axis 0"),
    Case("LogSoftmax", 11, (x234,), {"axis": -2}),
    Case("Hardmax", 12, (x234,), {"axis": 1}),
    Case("BatchNormalization", 7, (image, real(3), real(3), real(3), abs(real(3)))),
    Case("BatchNormalization", 9, (image, real(3), real(3), real(3), abs(real(3)))),
    Case(
        "BatchNormalization",
        8,
        (image, real(3, 4, 5), real(3, 4, 5), real(3, 4, 5), abs(real(3, 4, 5))),
        {"spatial": 0, "epsilon": 0.01},
        why="spatial=0",
    ),
    Case("Upsample", 7, (image,), {"scales": [1.0, 1.0, 2.0, 3.0]}),
    Case("Upsample", 9, (image, np.float32([1, 1, 2, 2])), {"mode": "linear"}, 1, (1,)),
    Case("Upsample", 9, (image, np.float32([1, 1, 2, 2])), {}, why="scales at run time"),
    Case("Resize", 10, (image, np.float32([1, 1, 1.5, 2])), {}, 1, (1,), why="up"),
    Case("Resize", 10, (image, np.float32([1, 1, 0.5, 0.6])), {}, 1, (1,), why="down"),
    Case("Resize", 10, (image, np.float32([1, 1, 0.5, 2])), {}, 1, (1,), why="both"),
    Case("Resize", 10, (image, np.float32([1, 1, 2, 0.6])), {"mode": "linear"}, 1, (1,)),
    Case(
        "Resize",
        11,
        (image, np.float32([]), np.float32([]), np.array([2, 3, 8, 7])),
        {"mode": "cubic"},
        1,
        (1, 2, 3),
        why="sizes",
    ),
    Case("Resize", 11, (image, np.float32([]), np.float32([1, 1, 2, 2])), {}, 1, (1, 2)),
    Case(
        "Resize",
        12,
        (image, np.float32([]), np.float32([1, 1, 2, 0.6])),
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"},
        1,
        (1, 2),
        why="tf_half_pixel_for_nn",
    ),
    Case("Scatter", 9, (x34, np.array([[0, 1], [2, 0]]), real(2, 2)), {"axis": 0}),
    Case("Scatter", 10, (x34, np.array([[0, 1], [2, 0]]), real(2, 2)), {"axis": 1}),
    Case(
        "RoiAlign",
        10,
        (image, np.float32([[0, 0, 3, 3], [1, 1, 4, 3]]), np.array([0, 1])),
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    Case("GridSample", 16, (image, rng.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)), {}),
    Case(
        "GridSample",
        16,
        (image, rng.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)),
        {"mode": "bicubic"},
    ),
    Case(
        "GridSample",
        16,
        (image, rng.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)),
        {"mode": "nearest", "padding_mode": "border"},
    ),
    Case("MaxPool", 7, (image,), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("AveragePool", 7, (image,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Case("OneHot", 9, (np.array([0, 2, 1]), np.array(3), np.float32([0, 1])), {}),
    Case("Gemm", 7, (x34, real(4, 2), real(2)), {"alpha": 0.5}),
    Case("PRelu", 7, (image, real(3, 1, 1))),
    Case("Cast", 8, (x34,), {"to": TensorProto.INT32}),
    Case("ArgMax", 7, (x34,), {"axis": 1}),
    Case("Max", 7, (x34, real(3, 4))),
    Case("Flatten", 7, (image,), {"axis": 2}),
    Case("LRN", 7, (image,), {"size": 3}),
    Case("GatherND", 11, (x34, np.array([[0], [2]]))),
    Case("QuantizeLinear", 10, (x34, np.float32(0.1), np.uint8(3))),
    Case("LSTM", 7, (real(4, 2, 3), real(1, 20, 3), real(1, 20, 5)), {"hidden_size": 5}, 3),
    Case("GRU", 7, (real(4, 2, 3), real(1, 15, 3), real(1, 15, 5)), {"hidden_size": 5}, 2),
    Case("ConvTranspose", 7, (real(1, 2, 3, 3), real(2, 2, 3, 3)), {"strides": [2, 2]}),
]


def model_of(case: Case, shapes: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.operator, names, outputs, name="node", **case.attributes)
    infos, initializers, feeds = [], [], {}
    for index, (name, value) in enumerate(zip(names, case.inputs, strict=True)):
        if value is None:
            continue
        value = np.asarray(value)
        if index in case.constants:
            initializers.append(onnx.numpy_helper.from_array(value, name))
            continue
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        sizes = {
            "static": list(value.shape),
            "symbolic": [f"{name}_{axis}" for axis in range(value.ndim)],
            "unknown": None,
        }[shapes]
        infos.append(helper.make_tensor_value_info(name, kind, sizes))
        feeds[name] = value
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "old", infos, results, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)])
    model.ir_version = 8
    return onnx.shape_inference.infer_shapes(model), feeds


@pytest.mark.parametrize("shapes", ["static", "symbolic", "unknown"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_old_node_keeps_its_meaning(case: Case, shapes: str) -> None:
    model, feeds = model_of(case, shapes)
    wanted = run_ort(model, feeds)
    upgraded = PREPARE(ir.from_proto(model))
    assert upgraded.opset_imports[""] == newest_opset()
    if shapes == "static":  # the checker wants every shape declared
        onnx.checker.check_model(ir.to_proto(upgraded))
    try:
        given = run_ort(upgraded, feeds)
    except (UnsupportedModel, NotImplemented):  # newer than what onnxruntime has
        given = run_reference(upgraded, feeds)
    assert_same(wanted, given)


def test_every_change_since_opset_7_has_an_adapter_or_is_known_to_be_compatible() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    changes = [
        (schema.name, version)
        for schema in schemas
        if schema.domain == ""
        for version in versions_of(schema.name)[1:]
        if version == schema.since_version and version > 7
    ]
    missing = [
        f"{name}-{version}: read its documentation, then write an adapter (onward/passes/upgrades) "
        "or enter it in COMPATIBLE"
        for name, version in changes
        if ADAPTERS.find("", name, version) is ADAPTERS.find("", name, version - 1)
        and not is_compatible(name, version)
    ]
    assert not missing
    assert onnx.defs.onnx_opset_version() == NEWEST


def test_no_change_is_both_compatible_and_adapted() -> None:
    for version, names in COMPATIBLE.items():
        for name in names.split():
            assert version in versions_of(name)
            adapted = ADAPTERS.find("", name, version)
            assert adapted is ADAPTERS.find("", name, version - 1), f"{name}-{version}"


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def upgraded(model: onnx.ModelProto) -> ir.Model:
    return PREPARE(ir.from_proto(model))


@pytest.mark.parametrize(("opset", "kind"), [(7, TensorProto.FLOAT), (10, TensorProto.BOOL)])
def test_the_mask_of_dropout_keeps_its_type(opset: int, kind: int) -> None:
    model = parsed(
        f"""<ir_version: 4, opset_import: ["": {opset}]>
        dropout (float[2, 3] x) => (float[2, 3] y, {"bool" if opset == 10 else "float"}[2, 3] m)
        {{ y, m = Dropout<ratio = 0.3>(x) }}"""
    )
    feeds = {"x": real(2, 3)}
    y, mask = run_reference(upgraded(model), feeds)
    np.testing.assert_array_equal(y, feeds["x"])
    assert helper.np_dtype_to_tensor_dtype(mask.dtype) == kind


def test_scan_8_scans_each_batch_element() -> None:
    model = parsed(
        """<ir_version: 4, opset_import: ["": 8]>
        scan (float[2, 3] initial, float[2, 5, 3] xs) => (float[2, 3] total, float[2, 5, 3] sums)
        {
            total, sums = Scan<num_scan_inputs = 1, directions = [1], body = body
                (float[3] before, float[3] x) => (float[3] after, float[3] y)
                { after = Add(before, x) y = Identity(after) }>("", initial, xs)
        }"""
    )
    feeds = {"initial": real(2, 3), "xs": real(2, 5, 3)}
    new = upgraded(model)
    assert_same(run_ort(model, feeds), run_ort(new, feeds))
    assert "Add" in [node.op_type for node in ir.traversal.RecursiveGraphIterator(new.graph)]


def test_scan_8_with_lengths_is_refused() -> None:
    model = parsed(
        """<ir_version: 4, opset_import: ["": 8]>
        scan (int64[2] n, float[2, 3] a, float[2, 5, 3] xs) => (float[2, 3] total)
        {
            total = Scan<num_scan_inputs = 1, body = body
                (float[3] before, float[3] x) => (float[3] after)
                { after = Add(before, x) }>(n, a, xs)
        }"""
    )
    with pytest.raises(UnsupportedModel, match="Scan has no form in newer opsets: Scan-8 with"):
        upgraded(model)


@pytest.mark.parametrize("channels", ["4", "C"])
def test_group_normalization_18_repeats_scale_and_bias_for_each_channel(channels: str) -> None:
    model = parsed(
        f"""<ir_version: 8, opset_import: ["": 18]>
        norm (float[2, {channels}, 3] x, float[2] scale, float[2] bias) => (float[2, 4, 3] y)
        {{ y = GroupNormalization<num_groups = 2, epsilon = 0.01>(x, scale, bias) }}"""
    )
    x, scale, bias = real(2, 4, 3), real(2), real(2)
    groups = x.reshape(2, 2, 6)
    mean, variance = groups.mean(2, keepdims=True), groups.var(2, keepdims=True)
    wanted = (groups - mean) / np.sqrt(variance + 0.01) * scale[:, None] + bias[:, None]
    feeds = {"x": x, "scale": scale, "bias": bias}
    assert_same([wanted.reshape(2, 4, 3)], run_reference(upgraded(model), feeds))


def test_a_mask_with_one_column_still_holds_for_every_key() -> None:
    model = parsed(
        """<ir_version: 10, opset_import: ["": 23]>
        attention (float[1, 2, 3, 4] q, float[1, 2, 5, 4] k, float[1, 2, 5, 4] v, float[3, 1] mask)
            => (float[1, 2, 3, 4] y)
        { y = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v, mask) }"""
    )
    q, k, v, mask = real(1, 2, 3, 4), real(1, 2, 5, 4), real(1, 2, 5, 4), real(3, 1)
    scores = q @ k.transpose(0, 1, 3, 2) / 2 + mask
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    new = upgraded(model)
    assert_same([weights @ v], run_reference(new, {"q": q, "k": k, "v": v, "mask": mask}))
    assert "q_num_heads" not in new.graph[-1].attributes


def test_a_function_is_upgraded_from_its_own_opset() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 18, "local": 1]>
        calls (float[2, 3, 4] x) => (float[3, 4] y)
        { y = local.first_row<start = 1>(x) }
        <domain: "local", opset_import: ["": 9]>
        first_row<start>(x) => (y)
        {
            row = Slice<axes = [0], starts = [1], ends = [2]>(x)
            flat = Softmax<axis = 1>(row)
            y = Squeeze<axes = [0]>(flat)
        }"""
    )
    x = real(2, 3, 4)
    exponents = np.exp(x[1])
    new = upgraded(model)
    assert not new.functions
    assert_same([exponents / exponents.sum()], run_reference(new, {"x": x}))


def test_subgraphs_are_upgraded() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 11]>
        branch (bool c, float[2, 3] x) => (float[2] y)
        {
            y = If(c) <
                then_branch = then () => (float[2] a)
                    { a = ReduceSum<axes = [1], keepdims = 0>(x) },
                else_branch = other () => (float[2] b)
                    { b = ReduceMax<axes = [1], keepdims = 0>(x) }>
        }"""
    )
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": real(2, 3)}
        assert_same(run_ort(model, feeds), run_ort(upgraded(model), feeds))


def test_a_graph_output_keeps_its_name_and_type() -> None:
    model = parsed(
        """<ir_version: 8, opset_import: ["": 11]>
        out (float[2, 3, 4] x) => (float[2, 3, "n"] y)
        { y = Softmax<axis = 1>(x) }"""
    )
    (y,) = upgraded(model).graph.outputs
    assert (y.name, y.dtype, str(y.shape)) == ("y", ir.DataType.FLOAT, "[2,3,n]")


EARLY = [
    Case("Add", 6, (image, real(3)), {"broadcast": 1, "axis": 1}),
    Case("Mul", 6, (image, real(4, 5)), {"broadcast": 1}),
    Case("PRelu", 6, (image, real(3))),
    Case("Reshape", 4, (x34,), {"shape": [2, 6], "consumed_inputs": [0, 0]}),
    Case("Concat", 3, (x34, x34), {}),
    Case("Cast", 5, (x34,), {"to": "INT32"}),
    Case("Pad", 1, (x34,), {"paddings": [0, 1, 0, 1], "value": 2.0}),
    Case("Tile", 5, (x34, np.array(2), np.array(1)), {}, 1, (1, 2)),
    Case("Upsample", 6, (image,), {"height_scale": 2.0, "width_scale": 3.0}),
]
EARLY_RESULTS = [
    EARLY[0].inputs[0] + EARLY[0].inputs[1].reshape(3, 1, 1),
    EARLY[1].inputs[0] * EARLY[1].inputs[1],
    np.where(image < 0, image * EARLY[2].inputs[1].reshape(3, 1, 1), image),
    x34.reshape(2, 6),
    np.concatenate([x34, x34], 1),
    x34.astype(np.int32),
    np.pad(x34, [(0, 0), (1, 1)], constant_values=2),
    np.tile(x34, (1, 2)),
    image.repeat(2, 2).repeat(3, 3),
]


@pytest.mark.parametrize(
    ("case", "wanted"), list(zip(EARLY, EARLY_RESULTS)), ids=[*map(str, EARLY)]
)
def test_a_node_from_before_opset_7_keeps_its_meaning(case: Case, wanted: Any) -> None:
    model, feeds = model_of(case, "static")
    assert_same([wanted], run_reference(upgraded(model), feeds))
