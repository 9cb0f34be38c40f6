"""Which operators have rules, which say that they have none, and which the cases verify."""

from __future__ import annotations

import onnx
import pytest

from onward.gradients.coverage import differentiable
from onward.gradients.rule import GradientTable
from onward.gradients.table import GRADIENTS
from tests.gradients.case import Case
from tests.gradients.test_rules import CASES

# what the peer's own gradient checker is run on
PEERS = (
    "Erf Sqrt Add Sub Mul Div Pow MatMul Sin Cos Neg Abs Log Exp Flatten Tanh Gemm ReduceMean "
    "ReduceSum ReduceL2 ReduceLogSumExp Relu Cast Split MaxPool GlobalAveragePool Conv Concat "
    "AveragePool Transpose Squeeze Unsqueeze BatchNormalization Sigmoid Softmax LogSoftmax "
    "SoftmaxCrossEntropyLoss Gelu Gather Dropout GatherND LayerNormalization Where Slice Expand "
    "GatherElements TopK Clip Min Max Tile Pad ScatterND ScatterElements Trilu Reciprocal "
    "LeakyRelu ConvTranspose Resize Atan GlobalMaxPool ReduceMax SimplifiedLayerNormalization "
    "com.microsoft::QuickGelu com.microsoft::FastGelu com.microsoft::BiasGelu"
)


def is_verified(case: Case) -> bool:
    """Whether central differences, stock onnxruntime or torch's autograd judge it."""
    return case.differences or case.ort or case.autograd


@pytest.mark.parametrize("operator", PEERS.split())
def test_operators_of_onnxruntime_training_have_all_kinds_of_cases(operator: str) -> None:
    shown = [case for case in CASES if case.operator == operator]
    assert any(case.differences for case in shown)
    assert any(case.ort for case in shown)
    assert any(case.autograd for case in shown)
    assert any(case.dynamic for case in shown)


def test_no_operator_is_missing() -> None:
    kinds = {(each.domain, each.name): each.kind for each in differentiable(GRADIENTS)}
    assert [name for name, kind in kinds.items() if kind == "missing"] == []


def test_every_rule_has_a_formula_or_a_reason() -> None:
    assert [each for each in differentiable(GRADIENTS) if not each.why] == []


def test_nearly_all_default_operators_that_have_slopes_are_verified() -> None:
    """At least 135, only of the newest opset."""
    newest = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.domain == "" and not schema.deprecated
    }
    assert len({case.operator for case in CASES if is_verified(case)} & newest) >= 135


def test_an_operator_that_a_table_lacks_is_missing() -> None:
    table = GradientTable()
    table.none("integer", "Shape")
    kinds = {each.name: each for each in differentiable(table)}
    assert kinds["Sin"].kind == "missing"
    assert (kinds["Shape"].kind, kinds["Shape"].why) == ("none", "integer")
