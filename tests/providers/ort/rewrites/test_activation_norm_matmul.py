"""Rules for stock onnxruntime keep its results and leave the expected operators."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest

from onward.gradients.model import gradient
from onward.graph.builder import OpBuilder
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime
from tests.passes.one_graph import built, feeds_for, left_after
from tests.passes.running import assert_same, run_ort


def operators_after(build: Any, *shapes: Any, opset: int = 23) -> list[str]:
    """The operators of a gradient model after the pass; onnxruntime's results must stay."""
    model = built(lambda op, *xs: op.ReduceSum(build(op, *xs)), *shapes, opset=opset)
    names = [str(value.name) for value in model.graph.inputs]
    extended = gradient(model, {"y0": "dy"}, names)
    feeds = feeds_for(extended)
    wanted = run_ort(extended, feeds)
    fused = fuse_for_onnxruntime(extended)
    assert_same(wanted, run_ort(fused, feeds), 1e-5)
    return sorted(node.op_type for node in fused.graph.all_nodes())


ACTIVATIONS = {
    "gelu": (lambda op, x: op.Gelu(x), "Erf", "Gelu"),
    "gelu by tanh": (lambda op, x: op.Gelu(x, approximate="tanh"), "Sigmoid", "Gelu"),
    "swish": (lambda op, x: op.Swish(x), "Sigmoid", "Swish"),
    "swish of 2 x": (lambda op, x: op.Swish(x, alpha=2.0), "Sigmoid", "Swish"),
    "mish": (lambda op, x: op.Mish(x), "Tanh", "Mish"),
}


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_an_activation_shares_its_function_with_its_gradient(name: str) -> None:
    build, function, whole = ACTIVATIONS[name]
    left = operators_after(build, (3, 4), opset=24)
    assert left.count(function) == 1 and whole not in left


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_an_activation_without_a_gradient_stays(name: str) -> None:
    build, _, whole = ACTIVATIONS[name]
    model = built(build, (3, 4), opset=24)
    assert [node.op_type for node in fuse_for_onnxruntime(model).graph] == [whole]


def test_half_of_erf_is_a_hard_sigmoid() -> None:
    model = built(lambda op, x: op.Add(op.Mul(op.Erf(x), 0.5), 0.5), (3, 4))
    assert left_after(model, fuse_for_onnxruntime, 1e-6, run_ort) == ["Erf", "HardSigmoid"]


def normed(op: OpBuilder, x: Any, scale: Any, bias: Any) -> Any:
    return op.Tanh(op.LayerNormalization(x, scale, bias, axis=-1, epsilon=1e-3))


@pytest.mark.parametrize("shape", [(8, 16, 64), ("n", 3, 64)])
def test_a_layer_norm_shares_its_centred_input_with_its_gradient(shape: Any) -> None:
    left = operators_after(normed, shape, (64,), (64,))
    assert "LayerNormalization" not in left and left.count("Reciprocal") == 1


def test_a_layer_norm_of_several_axes_and_no_bias_is_written_out() -> None:
    def build(op: OpBuilder, x: Any, scale: Any) -> Any:
        return op.Tanh(op.LayerNormalization(x, scale, axis=1))

    assert "LayerNormalization" not in operators_after(build, (8, 16, 64), (16, 64))


def test_a_small_layer_norm_keeps_its_kernel() -> None:
    assert "LayerNormalization" in operators_after(normed, (2, 3, 4), (4,), (4,))


def test_a_layer_norm_with_unused_statistics_keeps_its_kernel() -> None:
    model = built(normed, (8, 16, 64), (64,), (64,))
    assert left_after(model, fuse_for_onnxruntime) == ["LayerNormalization", "Tanh"]


@pytest.mark.parametrize("axis", [-1, 1])
def test_an_rms_norm_shares_its_square_with_its_gradient(axis: int) -> None:
    def build(op: OpBuilder, x: Any, scale: Any) -> Any:
        return op.Tanh(op.RMSNormalization(x, scale, axis=axis))

    left = operators_after(build, (2, 3, 4), (4,) if axis == -1 else (3, 4))
    assert "RMSNormalization" not in left and left.count("Reciprocal") == 1


def test_an_rms_norm_without_a_gradient_keeps_its_kernel() -> None:
    model = built(lambda op, x, scale: op.RMSNormalization(x, scale), (2, 3, 4), (4,))
    assert left_after(model, fuse_for_onnxruntime, 1e-5) == ["RMSNormalization"]


# -- products ----------------------------------------------------------------------------------


def linear(op: OpBuilder, x: Any, w: Any, b: Any) -> Any:
    return op.Add(op.MatMul(x, op.Transpose(w, perm=[1, 0])), b)


@pytest.mark.parametrize("shape", [(2, 3, 4), ("n", 3, 4), (2, 3, 3, 4)])
def test_rows_times_a_matrix_plus_a_bias_are_one_gemm(shape: Any) -> None:
    model = built(linear, shape, (5, 4), (5,))
    assert left_after(model, fuse_for_onnxruntime, 1e-5, run_ort) == ["Flatten", "Gemm", "Reshape"]


def test_rows_are_flattened_once_for_a_product_and_its_gradient() -> None:
    left = operators_after(linear, (2, 3, 4), (5, 4), (5,))
    assert left.count("Flatten") <= 2 and "MatMul" in left  # the product is the bias's sum


def test_rows_of_several_unknown_sizes_are_one_gemm_too() -> None:
    model = built(linear, ("n", "t", 4), (5, 4), (5,))
    left = left_after(model, fuse_for_onnxruntime, 1e-5, run_ort)
    assert left == ["Concat", "Flatten", "Gemm", "Reshape", "Shape"]


def test_rows_times_a_matrix_of_unknown_width_stay() -> None:
    model = built(lambda op, x, w: op.MatMul(x, w), (2, 3, 4), (4, "n"))
    assert left_after(model, fuse_for_onnxruntime, 1e-5, run_ort) == ["MatMul"]


def test_a_bias_per_row_is_not_fused() -> None:
    def build(op: OpBuilder, x: Any, w: Any, b: Any) -> Any:
        return op.Add(op.MatMul(x, w), b)

    model = built(build, (2, 3, 4), (4, 5), (3, 1))
    left = left_after(model, fuse_for_onnxruntime, 1e-5, run_ort)
    assert left == ["Add", "Flatten", "Gemm", "Reshape"]


def scores(op: OpBuilder, q: Any, k: Any) -> Any:
    return op.Div(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), 4.0)


def scaled_before(op: OpBuilder, q: Any, k: Any) -> Any:
    return op.MatMul(op.Mul(q, 0.25), op.Transpose(k, perm=[0, 1, 3, 2]))


@pytest.mark.parametrize("build", [scores, scaled_before])
def test_transposes_and_factors_go_into_a_fused_product(build: Any) -> None:
    model = built(build, (2, 3, 4, 5), (2, 3, 6, 5))
    assert left_after(model, fuse_for_onnxruntime, 1e-5, run_ort) == ["FusedMatMul"]


def test_a_fused_product_declares_its_domain() -> None:
    fused = fuse_for_onnxruntime(built(scores, (2, 3, 4, 5), (2, 3, 6, 5)))
    assert fused.opset_imports["com.microsoft"] == 1
    assert fused.graph[0].domain == "com.microsoft"


def test_products_of_other_types_are_not_fused() -> None:
    model = built(scores, (2, 3, 4, 5), (2, 3, 6, 5), dtype="float64")
    left = left_after(model, fuse_for_onnxruntime, 1e-9, run_ort)
    assert left == ["Div", "MatMul", "Transpose"]


def two_readers(op: OpBuilder, q: Any, k: Any) -> Any:
    scaled = op.Mul(q, 0.25)
    return op.MatMul(scaled, k), op.Relu(scaled)


def product_read_twice(op: OpBuilder, q: Any, k: Any) -> Any:
    product = op.MatMul(q, k)
    return op.Mul(product, 0.25), op.Relu(product)


def other_axes(op: OpBuilder, q: Any, k: Any) -> Any:
    return op.MatMul(op.Transpose(q, perm=[1, 0, 2]), k), op.Relu(q)


@pytest.mark.parametrize("build", [two_readers, product_read_twice, other_axes])
def test_values_with_other_readers_stay(build: Any) -> None:
    model = built(build, (3, 3, 3), (3, 3, 3))
    assert "FusedMatMul" not in left_after(model, fuse_for_onnxruntime, 1e-5, run_ort)


def test_the_types_and_shapes_of_new_values_are_known() -> None:
    model = built(lambda op, *xs: op.ReduceSum(normed(op, *xs)), (8, 16, 64), (64,), (64,))
    fused = fuse_for_onnxruntime(gradient(model, {"y0": "dy"}, ["x0", "x1", "x2"]))
    values = [value for node in fused.graph for value in node.outputs]
    assert all(
        isinstance(value.type, ir.TensorType) and value.shape is not None for value in values
    )
