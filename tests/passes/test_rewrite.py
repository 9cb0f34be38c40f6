"""`rewrite` keeps names, outputs and subgraphs when a rule replaces a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE
from onward.passes.rewrite import Names, Ops, Replacement, Rules, rewrite
from tests.passes.one_graph import built, left_after


def applied(rules: Rules) -> Any:
    def each(model: ir.Model) -> ir.Model:
        rewrite(model, rules)
        return model

    return each


@pytest.fixture
def rules() -> Rules:
    return Rules()


def test_a_rule_replaces_a_node_by_several(rules: Rules) -> None:
    @rules("Neg")
    def negate(op: Ops, node: ir.Node) -> Replacement:
        return op.Mul(node.inputs[0], np.float32(-1))

    model = built(lambda op, x: op.Exp(op.Neg(x)), (2,))
    assert left_after(model, applied(rules)) == ["Exp", "Mul"]


def test_an_output_keeps_name_type_shape_and_metadata(rules: Rules) -> None:
    @rules("Neg")
    def negate(op: Ops, node: ir.Node) -> Replacement:
        return op.Mul(node.inputs[0], np.float32(-1))

    model = PREPARE(built(lambda op, x: op.Neg(x), ("n",)))
    model.graph.outputs[0].metadata_props["unit"] = "volt"
    rewrite(model, rules)
    (y,) = model.graph.outputs
    assert (y.name, y.dtype, str(y.shape)) == ("y0", ir.DataType.FLOAT, "[n]")
    assert y.metadata_props == {"unit": "volt"}


def test_a_rule_may_answer_with_a_value_that_exists(rules: Rules) -> None:
    @rules("Neg")
    def forget(op: Ops, node: ir.Node) -> Replacement:
        return node.inputs[0]

    model = PREPARE(built(lambda op, x: (op.Neg(x), op.Neg(op.Exp(x))), (2,)))
    rewrite(model, rules)
    assert [value.name for value in model.graph.outputs] == ["y0", "y1"]
    assert sorted(node.op_type for node in model.graph) == ["Exp", "Identity"]


def test_new_constants_stay_in_the_subgraph(rules: Rules) -> None:
    @rules("Neg")
    def negate(op: Ops, node: ir.Node) -> Replacement:
        return op.Mul(node.inputs[0], np.float32(-1))

    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 21]>
            g (bool c, float[2] x) => (float[2] y)
            {
                y = If(c) <then_branch = a () => (float[2] r) { r = Neg(x) },
                           else_branch = b () => (float[2] s) { s = Abs(x) }>
            }"""
        )
    )
    assert left_after(model, applied(rules)) == ["Abs", "If", "Mul"]
    rewrite(model, rules)
    assert not model.graph.initializers


def test_rule_without_a_replacement_changes_nothing(rules: Rules) -> None:
    @rules("Exp")
    def decline(op: Ops, node: ir.Node) -> Replacement:
        op.Neg(node.inputs[0])
        return None

    model = PREPARE(built(lambda op, x: op.Exp(op.Abs(x)), (2,)))
    assert rewrite(model, rules) == 0
    assert len(model.graph[0].outputs[0].uses()) == 1


def test_rules_that_undo_each_other_terminate(rules: Rules) -> None:
    @rules("Neg")
    def there(op: Ops, node: ir.Node) -> Replacement:
        return op.Abs(node.inputs[0])

    @rules("Abs")
    def and_back(op: Ops, node: ir.Node) -> Replacement:
        return op.Neg(node.inputs[0])

    assert rewrite(PREPARE(built(lambda op, x: op.Neg(x), (2,))), rules) <= 32


def test_other_domains_have_other_operators(rules: Rules) -> None:
    @rules("Neg")
    def forget(op: Ops, node: ir.Node) -> Replacement:
        return node.inputs[0]

    def foreign(op: OpBuilder, x: Any) -> Any:
        return op.Neg(x, domain="mine")

    assert rewrite(PREPARE(built(foreign, (2,))), rules) == 0


def test_names_are_never_given_twice() -> None:
    names = Names(PREPARE(built(lambda op, x: op.Neg(x), (2,))))
    assert [names.fresh("x0"), names.fresh("x0"), names.fresh("z")] == ["x0_1", "x0_2", "z"]
