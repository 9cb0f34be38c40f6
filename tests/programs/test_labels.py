"""Labels: which inputs hold classes, as a graph and as a loss says it."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onward.graph.shapes.infer import infer_shapes
from onward.losses import MSE, CrossEntropy, Total
from onward.programs.label_ranges import LabelRange
from onward.programs.labels import find_labels, labels_of_loss
from tests.sessions.training.small import mlp


def graph(body: str, labels: str = "int64[n]", scores: str = "float[n, 5]") -> ir.Model:
    text = f"g ({scores} x, {labels} labels) => (float loss) {{ {body} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    return infer_shapes(ir.from_proto(model))


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ("loss = SoftmaxCrossEntropyLoss(x, labels)", None),
        ("loss = SoftmaxCrossEntropyLoss<ignore_index=-1>(x, labels)", -1),
        ("y = LogSoftmax<axis=1>(x) loss = NegativeLogLikelihoodLoss(y, labels)", None),
        ("z = Cast<to=6>(labels) loss = SoftmaxCrossEntropyLoss(x, z)", None),
    ],
)
def test_labels_are_found_by_the_loss_that_reads_them(body: str, ignored: int | None) -> None:
    [found] = find_labels(graph(body))
    assert found == LabelRange(name="labels", classes=5, ignored=ignored)


@pytest.mark.parametrize(
    "model",
    [
        graph("z = Abs(labels) loss = SoftmaxCrossEntropyLoss(x, z)"),
        graph("loss = SoftmaxCrossEntropyLoss(x, labels)", scores="float[n, c]"),
        graph("y = ReduceSum<keepdims=0>(x) z = Cast<to=1>(labels) s = ReduceSum<keepdims=0>(z)"
              "loss = Add(y, s)"),
    ],
    ids=["changed on the way", "any number of classes", "no such loss"],
)  # fmt: skip
def test_labels_with_unknown_classes_are_left_out(model: ir.Model) -> None:
    assert list(find_labels(model)) == []


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (CrossEntropy(label_smoothing=0.1), ["labels"]),
        (Total({"a": CrossEntropy(target="a"), "b": (CrossEntropy(target="b"), 0.5)}), ["a", "b"]),
        (CrossEntropy(soft_labels=True), []),
        (MSE(), []),
    ],
)
def test_a_loss_declares_its_labels(loss: Any, names: list[str]) -> None:
    [logits] = mlp().graph.outputs
    found = list(labels_of_loss(loss, {"logits": logits}))
    assert found == [LabelRange(name=name, classes=4, ignored=None) for name in names]
