"""Forms of masks and normalisations for x86-64: the same results in fewer or faster passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.gradients.model import gradient
from onward.graph.builder import OpBuilder
from onward.passes.rewrite import rewrite
from onward.providers.ort.processors import AVX512
from onward.providers.ort.rewrites import x86_forms
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime
from tests.passes.one_graph import built, feeds_for
from tests.passes.running import assert_same, run_ort


def operators_after(build: Any, *shapes: Any) -> list[str]:
    """The operators of a gradient model in the form for AVX-512; results must stay."""
    model = built(lambda op, *xs: op.ReduceSum(build(op, *xs)), *shapes)
    names = [str(value.name) for value in model.graph.inputs]
    extended = gradient(model, {"y0": "dy"}, names)
    feeds = feeds_for(extended)
    wanted = run_ort(extended, feeds)
    fused = fuse_for_onnxruntime(extended, AVX512)
    assert_same(wanted, run_ort(fused, feeds), 1e-4)
    return [node.op_type for node in fused.graph.all_nodes()]


# -- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, "n"])
def test_the_mask_of_a_layer_is_a_product(rows: Any) -> None:
    left = operators_after(lambda op, x, w: op.MatMul(op.Relu(x), w), (rows, 4), (4, 5))
    assert "Where" not in left and left.count("HardSigmoid") == 1


def test_the_mask_before_a_pooling_is_a_product_with_what_is_not_repeated() -> None:
    def build(op: OpBuilder, x: Any, w: Any) -> Any:
        return op.MatMul(op.Flatten(op.GlobalAveragePool(op.Relu(x))), w)

    left = operators_after(build, (2, 4, 3, 3), (4, 5))
    assert "Where" not in left and left.count("Expand") == 1  # the gradient of the sum


def test_an_infinite_gradient_is_still_masked() -> None:
    """sqrt(relu(x)) has the gradient 0 at x = 0, where sqrt has an infinite one."""
    left = operators_after(lambda op, x: op.Sqrt(op.Relu(x)), (3, 4))
    assert "Where" in left
    model = built(lambda op, x: op.ReduceSum(op.Sqrt(op.Relu(x))), (3,))
    fused = fuse_for_onnxruntime(gradient(model, {"y0": "dy"}, ["x0"]), AVX512)
    feeds = {"x0": np.array([-1, 0, 4], np.float32), "dy": np.ones(1, np.float32)}
    assert run_ort(fused, feeds)[-1].tolist() == [0, 0, 0.25]


@pytest.mark.parametrize("number", [1.2e-38, 1e-20, 1.0, 3e38, np.inf, 0.0, -0.0, -1e-30, -np.inf])
def test_the_mask_is_exactly_zero_or_one(number: float) -> None:
    def build(op: OpBuilder, x: Any, a: Any, b: Any) -> Any:
        return op.Where(op.Greater(x, 0.0), op.MatMul(a, b), 0.0)

    model = built(build, (1, 1), (1, 2), (2, 1))
    feeds = {
        "x0": np.array([[number]], np.float32),
        "x1": np.array([[1, 2]], np.float32),
        "x2": np.array([[3], [4]], np.float32),
    }
    wanted = run_ort(ir.to_proto(model), feeds)
    assert rewrite(model, x86_forms.rule) == 1
    assert_same(wanted, run_ort(model, feeds), 0)


@pytest.mark.parametrize("other", [1.0, np.float32(0.5)])
def test_other_choices_stay(other: float) -> None:
    def build(op: OpBuilder, x: Any, a: Any) -> Any:
        return op.Where(op.Greater(x, 0.0), op.MatMul(a, a), other)

    assert not rewrite(built(build, (3, 3), (3, 3)), x86_forms.rule)


# -- normalisations ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), ("n", 3, 4), (4, 3)])
def test_the_gradient_of_a_batch_norm_has_one_batch_norm(shape: Any) -> None:
    def build(op: OpBuilder, x: Any, scale: Any, bias: Any) -> Any:
        mean, var = np.zeros(3, np.float32), np.ones(3, np.float32)
        y, *_ = op.BatchNormalization(x, scale, bias, mean, var, training_mode=1, outputs=3)
        return op.Tanh(y)

    left = operators_after(build, shape, (3,), (3,))
    assert left.count("BatchNormalization") == (3 if len(shape) == 2 else 2)


@pytest.mark.parametrize("rows", [(128, 96), ("n", 7, 96)])
def test_a_layer_norm_keeps_its_kernel(rows: Any) -> None:
    def build(op: OpBuilder, x: Any, scale: Any, bias: Any) -> Any:
        return op.Tanh(op.LayerNormalization(x, scale, bias, axis=-1))

    left = operators_after(build, rows, (96,), (96,))
    assert left.count("LayerNormalization") == 1 and "ReduceMean" not in left


@pytest.mark.parametrize(
    ("axes", "keep", "scale"), [([0], 1, (4,)), ([1], 0, (4,)), ([1], 1, (3, 4)), ([1], 1, ())]
)
def test_other_means_stay(axes: list[int], keep: int, scale: Any) -> None:
    model = built(lambda op, x, s: op.ReduceMean(op.Mul(x, s), axes, keepdims=keep), (3, 4), scale)
    assert not rewrite(model, x86_forms.rule)
