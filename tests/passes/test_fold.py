"""Constants are folded within bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.fold import fold_constants
from onward.passes.pipelines import PREPARE
from tests.passes.one_graph import Build, built, left_after


def test_a_chain_of_constants_becomes_one() -> None:
    def chain(op: OpBuilder, x: Any) -> Any:
        return op.Add(x, op.Exp(op.Neg(op.initializer("c", np.float32([1, 2, 3])))))

    assert left_after(built(chain, (2, 3)), fold_constants) == ["Add"]


def test_every_output_of_a_node_is_folded() -> None:
    def parts(op: OpBuilder, x: Any) -> Any:
        a, b = op.Split(op.initializer("c", np.float32([1, 2, 3])), [1, 2], axis=0, outputs=2)
        return op.Add(x, a), op.Mul(a, op.ReduceSum(b, keepdims=0))

    assert left_after(built(parts, (2, 3)), 1) == ["Add", "Identity"]


def test_an_output_that_is_constant_keeps_its_name() -> None:
    def constant(op: OpBuilder, x: Any) -> Any:
        return op.Neg(op.initializer("c", np.float32([1, 2]))), op.Relu(x)

    assert left_after(built(constant, (2,)), fold_constants) == ["Identity", "Relu"]


def test_initializer_that_is_an_input_is_not_folded() -> None:
    def shifted(op: OpBuilder, x: Any) -> Any:
        return op.Add(x, op.Neg(op.initializer("c", np.float32([1, 2]))))

    model = built(shifted, (2,))
    model.graph.inputs.append(model.graph.initializers["c"])
    assert left_after(model, 1) == ["Add", "Neg"]


HUGE: dict[str, Build] = {
    "ConstantOfShape": lambda op, x: op.ConstantOfShape(np.asarray([1 << 20, 1 << 20])),
    "Expand": lambda op, x: op.Expand(np.float32(1), np.asarray([1 << 20, 1 << 20])),
    "Tile": lambda op, x: op.Tile(np.ones(1024, np.float32), np.asarray([1 << 30])),
    "Range": lambda op, x: op.Cast(
        op.Range(np.asarray(0), np.asarray(1 << 50), np.asarray(1)), to=1
    ),
    "Pad": lambda op, x: op.Pad(np.ones(2, np.float32), np.asarray([1 << 40, 0])),
}


@pytest.mark.parametrize("build", list(HUGE.values()), ids=list(HUGE))
def test_large_results_are_not_folded(build: Build) -> None:
    def small(op: OpBuilder, x: Any) -> Any:
        return op.Add(x, op.ReduceMean(build(op, x), keepdims=0))

    model = fold_constants(PREPARE(built(small, (2,))))
    assert "ReduceMean" in [node.op_type for node in model.graph]


def test_expensive_nodes_are_not_folded() -> None:
    def product(op: OpBuilder, x: Any) -> Any:
        w = op.initializer("w", np.ones((512, 512), np.float32))
        return op.MatMul(x, op.MatMul(w, w))

    model = fold_constants(PREPARE(built(product, (2, 512))))
    assert [node.op_type for node in model.graph] == ["MatMul", "MatMul"]


def test_a_weight_that_only_moves_is_folded_whatever_its_size() -> None:
    def turned(op: OpBuilder, x: Any) -> Any:
        return op.MatMul(x, op.Transpose(op.initializer("w", np.ones((600, 700), np.float32))))

    assert left_after(built(turned, (2, 700)), 1) == ["MatMul"]


def test_weight_with_other_readers_is_not_stored_twice() -> None:
    def both(op: OpBuilder, x: Any) -> Any:
        w = op.initializer("w", np.ones((600, 700), np.float32))
        return op.MatMul(op.MatMul(x, op.Transpose(w)), w)

    assert left_after(built(both, (2, 700)), 1) == ["MatMul", "MatMul", "Transpose"]


def test_quantised_weights_stay_small() -> None:
    def weights(op: OpBuilder, x: Any) -> Any:
        w = op.initializer("w", np.ones((4, 4), np.int8))
        return op.MatMul(x, op.DequantizeLinear(w, np.float32(0.1)))

    assert left_after(built(weights, (2, 4)), 1) == ["DequantizeLinear", "MatMul"]


def test_random_numbers_are_drawn_in_every_run() -> None:
    def noise(op: OpBuilder, x: Any) -> Any:
        return op.Add(x, op.RandomNormalLike(op.initializer("c", np.zeros(2, np.float32))))

    model = fold_constants(PREPARE(built(noise, (2,))))
    assert [node.op_type for node in model.graph] == ["RandomNormalLike", "Add"]


def branching(*, fed: bool) -> ir.Model:
    inputs = "float[2] x, bool c" if fed else "float[2] x"
    return ir.from_proto(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 21]>
            choose ({inputs}) => (float[2] y, float[2] z)
            <bool c = {{1}}, float[2] w = {{1, 2}}>
            {{
                y, z = If(c) <
                    then_branch = a () => (float[2] p, float[2] q)
                        <float[2] v = {{3, 4}}> {{ p = Add(x, w) q = Mul(p, v) }},
                    else_branch = b () => (float[2] r, float[2] s)
                        {{ r = Identity(x) s = Identity(w) }}>
            }}"""
        )
    )


def test_a_decided_branch_replaces_its_if() -> None:
    assert left_after(branching(fed=False), 1) == ["Add", "Mul"]


def test_values_of_the_removed_branch_are_removed() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 21]>
            choose (float[2] x) => (float[2] y) <bool c = {1}>
            {
                costly = Exp(x)
                y = If(c) <
                    then_branch = a () => (float[2] p) { p = Abs(x) },
                    else_branch = b () => (float[2] q)
                        { q = If(c) <then_branch = d () => (float[2] r) { r = Neg(costly) },
                                     else_branch = e () => (float[2] s) { s = Identity(x) }> }>
            }"""
        )
    )
    assert left_after(model, 1) == ["Abs"]


def test_a_branch_that_a_feed_decides_stays() -> None:
    assert "If" in left_after(branching(fed=True), 1)


def test_an_operator_that_onnx_does_not_know_is_left_alone() -> None:
    """onnxruntime has additional operators in ONNX's domain."""
    op = OpBuilder()
    x = op.input("x", "float32", (2,))
    node = ir.node("SimplifiedLayerNormalization", [op.initializer("c", np.ones(2, np.float32))])
    node.outputs[0].name, node.outputs[0].dtype = "n", ir.DataType.FLOAT
    op.graph.append(node)
    model = fold_constants(PREPARE(op.model(y=op.Add(x, node.outputs[0]))))
    assert [node.op_type for node in model.graph] == ["SimplifiedLayerNormalization", "Add"]


def test_total_size_of_folded_results_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(op: OpBuilder, x: Any) -> Any:
        parts = [op.ConstantOfShape(np.asarray([100 + i])) for i in range(10)]
        return tuple(op.Neg(part) for part in parts)

    model = built(filled, (2,))
    monkeypatch.setattr("onward.passes.fold._LARGEST_TOTAL", 2000)
    left = left_after(model, fold_constants)
    assert 0 < left.count("ConstantOfShape") < 10
