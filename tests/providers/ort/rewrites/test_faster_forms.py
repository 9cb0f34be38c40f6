"""Sums of rows and the cross entropy, as stock onnxruntime computes them fastest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward.gradients.model import gradient
from onward.graph.builder import OpBuilder
from onward.providers.ort.rewrites.faster_forms import fuse_for_onnxruntime, sum_rows_by_product
from tests.passes.one_graph import built, left_after
from tests.passes.running import assert_same, run_ort


@pytest.mark.parametrize(
    ("shape", "axes", "left"),
    [
        ((5, 4), [0], ["MatMul"]),
        ((2, 5, 4), [0, 1], ["Flatten", "MatMul"]),
        ((2, 5, 4), [-2, -3], ["Flatten", "MatMul"]),
        ((2, 5, 4), [0], ["Flatten", "MatMul", "Reshape"]),
        (("n", 4), [0], ["Expand", "MatMul", "Shape"]),
        (("n", "t", 4), [0, 1], ["Expand", "Flatten", "MatMul", "Shape"]),
        ((2, "t", 4), [0], ["Flatten", "MatMul", "Reshape"]),
    ],
)
def test_a_sum_of_rows_is_a_product_with_ones(shape: Any, axes: Any, left: list[str]) -> None:
    model = built(lambda op, x: op.ReduceSum(x, axes, keepdims=0), shape)
    assert left_after(model, sum_rows_by_product, 1e-5) == left


@pytest.mark.parametrize(
    ("shape", "axes", "keep"),
    [((5, 4), [1], 0), ((5, 4), [0], 1), ((5, 4), [0, 1], 0), ((2, 5, 4), [1], 0), ((5,), [0], 0)],
)
def test_other_sums_stay(shape: Any, axes: Any, keep: int) -> None:
    model = built(lambda op, x: op.ReduceSum(x, axes, keepdims=keep), shape)
    assert left_after(model, sum_rows_by_product) == ["ReduceSum"]


def test_sums_over_equal_sizes_share_their_ones() -> None:
    def build(op: OpBuilder, x: Any, y: Any) -> Any:
        return op.ReduceSum(x, [0], keepdims=0), op.ReduceSum(y, [0], keepdims=0)

    left = left_after(built(build, ("n", 4), ("n", 5)), sum_rows_by_product, 1e-5)
    assert left.count("Expand") == 1 and left.count("MatMul") == 2


def test_sums_of_other_types_stay() -> None:
    model = built(lambda op, x: op.ReduceSum(x, [0], keepdims=0), (5, 4), dtype="float64")
    assert left_after(model, sum_rows_by_product) == ["ReduceSum"]


# -- the cross entropy -------------------------------------------------------------------------


def classified(weights: bool, **options: Any) -> tuple[ir.Model, dict[str, Any]]:
    """The gradient model of a cross entropy of (4, 5, 2) scores, and its feeds."""
    rng = np.random.default_rng(0)
    op = OpBuilder()
    x = op.input("x", "float32", (4, 5, 2))
    labels = op.input("labels", "int64", (4, 2))
    given = [op.initializer("w", rng.random(5).astype(np.float32))] if weights else []
    loss = op.SoftmaxCrossEntropyLoss(op.Tanh(x), labels, *given, **options)
    model = gradient(op.model(loss=loss), {"loss": "dy"}, ["x"])
    shape = (4, 2) if options.get("reduction") == "none" else ()
    numbers = rng.integers(0, 5, (4, 2))
    numbers[1, 1] = options.get("ignore_index", 0)
    feeds = {
        "x": rng.standard_normal((4, 5, 2)).astype(np.float32) * 3,
        "labels": numbers,
        "dy": np.asarray(rng.random(shape), np.float32),
    }
    return model, feeds


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weights", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("ignored", [None, -100, 3])
def test_a_cross_entropy_shares_its_exponential_with_its_gradient(
    reduction: str, weights: bool, ignored: int | None
) -> None:
    options = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
    model, feeds = classified(weights, **options)
    wanted = run_ort(model, feeds)
    fused = fuse_for_onnxruntime(model)
    operators = [node.op_type for node in fused.graph]
    assert operators.count("Exp") == 1 and "SoftmaxCrossEntropyLoss" not in operators
    assert_same(wanted, run_ort(fused, feeds), 1e-5)


def test_large_scores_do_not_overflow() -> None:
    model, feeds = classified(False)
    feeds["x"] = feeds["x"] * 1e6
    model.graph.inputs[0].name = "x"
    assert all(np.isfinite(result).all() for result in run_ort(fuse_for_onnxruntime(model), feeds))


def test_the_gradients_factor_is_multiplied_into_the_reciprocal() -> None:
    op = OpBuilder()
    x, labels = op.input("x", "float32", (4, 5)), op.input("labels", "int64", (4,))
    model = gradient(op.model(loss=op.SoftmaxCrossEntropyLoss(x, labels)), "loss", "x")
    feeds = {"x": np.eye(4, 5, dtype=np.float32), "labels": np.array([0, 1, 4, 3])}
    wanted = run_ort(model, feeds)
    fused = fuse_for_onnxruntime(model)
    assert fused.graph.outputs[1].producer().op_type == "ScatterElements"  # type: ignore[union-attr]
    assert_same(wanted, run_ort(fused, feeds), 1e-6)


def test_a_cross_entropy_whose_log_probabilities_are_read_stays() -> None:
    op = OpBuilder()
    x, labels = op.input("x", "float32", (4, 5)), op.input("labels", "int64", (4,))
    loss, log_prob = op.SoftmaxCrossEntropyLoss(x, labels, outputs=2)
    model = gradient(op.model(loss=loss, log_prob=log_prob), "loss", "x")
    fused = fuse_for_onnxruntime(model)
    assert "SoftmaxCrossEntropyLoss" in [node.op_type for node in fused.graph]


def test_a_cross_entropy_without_a_gradient_stays() -> None:
    op = OpBuilder()
    x, labels = op.input("x", "float32", (4, 5)), op.input("labels", "int64", (4,))
    fused = fuse_for_onnxruntime(op.model(loss=op.SoftmaxCrossEntropyLoss(x, labels)))
    assert [node.op_type for node in fused.graph] == ["SoftmaxCrossEntropyLoss"]
