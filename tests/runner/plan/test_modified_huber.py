"""Classifiers that end in scores cut off at 0 and 1, or in a score and 1 minus it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import onward
from onward.errors import OptionError
from onward.losses.classification import BCEWithLogits, CrossEntropy
from onward.runner.plan.modified_huber import ModifiedHuber
from tests import models_ml
from tests.models_ml import ml
from tests.runner.plan.planned_runs import export, plan_of, train
from tests.runner.plan.test_joined_scores import B, W, Writer, X

Array = np.ndarray[Any, Any]


def classifier(classes: int, opset: int = 17) -> onnx.ModelProto:
    """An SGDClassifier with modified_huber."""
    op = Writer(opset)
    w, b = (W[:, :1], B[:1]) if classes == 2 else (W, B)
    z = op("Add", op("MatMul", "X", w), b)
    if opset < 11:
        clipped = op("Clip", z, min=-1.0, max=1.0)
    else:
        clipped = op("Clip", z, np.float32(-1), np.float32(1))
    p = op("Div", op("Add", clipped, np.float32(1)), np.float32(2))
    if classes == 2:
        return op.finish(op("Concat", op("Sub", np.float32(1), p), p, axis=1), [3, 7])
    return op.finish(op("Div", p, op.total(p)), [3, 7, 9])


def modified_huber(z: Array) -> Array:
    return np.where(z >= -1, np.maximum(0, 1 - z) ** 2, -4 * z)


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("classes", [2, 3])
def test_cut_off_scores_are_trained_with_their_loss(classes: int, opset: int) -> None:
    numbers = np.arange(60) % classes
    data = {"X": X, "y": np.array([3, 7, 9])[numbers]}
    plan = plan_of(classifier(classes, opset), data, target="y")
    assert isinstance(plan.loss, ModifiedHuber)
    assert plan.classes == (3, 7, 9)[:classes]
    assert "modified_huber" in [each.value for each in plan.choices]
    batch = next(plan.training.epoch(0))
    z = np.asarray(batch.feeds["X"]) @ W + B
    answers = np.eye(3)[numbers[batch.positions]]
    if classes == 2:
        z, answers = z[:, :1], answers[:, 1:2]
    expected = modified_huber(z * (2 * answers - 1)).mean()
    assert np.abs(z).max() > 1
    assert train(plan)["loss"] != pytest.approx(expected)  # of the second step
    assert train(plan, steps=1)["loss"] == pytest.approx(expected, rel=1e-5)


def test_another_loss_of_cut_off_scores_is_that_of_the_scores() -> None:
    data = {"X": X, "y": np.array([3, 7, 9])[np.arange(60) % 3]}
    plan = plan_of(classifier(3), data, target="y", label_smoothing=0.1)
    assert isinstance(plan.loss, CrossEntropy)
    binary = {"X": X, "y": np.array([3, 7])[np.arange(60) % 2]}
    plan = plan_of(classifier(2), binary, target="y", loss="cross_entropy")
    assert isinstance(plan.loss, BCEWithLogits)


def one_row(transform: str) -> onnx.ModelProto:
    """A LinearClassifier of two labels with one row of coefficients."""
    node = ml(
        "LinearClassifier", ["x"], ["label", "scores"], coefficients=W[:, 0].tolist(),
        intercepts=[0.3], classlabels_strings=["no", "yes"], post_transform=transform,
    )  # fmt: skip
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2]),
    ]
    return models_ml.model([node], [models_ml.table()], outputs)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX"])
def test_one_row_of_coefficients_is_trained_on_the_score_of_its_label(
    tmp_path: Any, transform: str
) -> None:
    s = X @ W[:, 0] + 0.3
    data = {"x": X, "kind": np.array(["no", "yes"])[(s > 0).astype(int)]}
    still = {"target": "kind", "validation_split": 0.3, "standardize": False}
    plan = plan_of(one_row(transform), data, learning_rate=1e-9, **still)
    assert isinstance(plan.loss, BCEWithLogits)
    assert train(plan)["accuracy"] == 1.0  # as the labels; of 1 - s and s, the larger one is not
    path = export(plan, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.run(["label"], {"x": X})[0].tolist() == data["kind"].tolist()
    assert plan.preprocessing.decode({"scores": np.stack([1 - s, s], 1)}) == []


def test_a_pair_of_scores_that_no_label_compares_is_a_pair() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 4))
    s = op.MatMul(x, op.initializer("w", W[:, :1]))
    model = op.model(scores=op.Concat(op.Sub(np.float32(1), s), s, axis=1))
    data = {"x": X, "kind": np.arange(60) % 2}
    assert isinstance(plan_of(model, data, target="kind").loss, CrossEntropy)


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match="ModifiedHuber needs scores of shape"):
        plan = plan_of(classifier(2), {"X": X, "y": np.arange(60) % 2}, target="y")
        loss = ModifiedHuber(output=plan.output, target="t", classes=True)
        op = onward.OpBuilder()
        loss.build(op, {plan.output: op.input(plan.output, "float32", ("n",))})
