"""Classifiers that name their own classes, scale their own inputs, or take texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from PIL import Image

import onward
from onward.errors import DataError
from onward.runner.plan.own_classes import own_classes
from tests.models_ml import (
    STRING,
    classifier,
    linear_classifier,
    ml,
    model,
    table,
    zipped_classifier,
)
from tests.runner.plan.planned_runs import export, mlp, plan_of, reasons
from tests.runner.plan.planned_runs import table as rows_of

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
COLOURS = ("blue", "green", "red")


def data(labels: list[Any]) -> dict[str, Any]:
    return {"x": X, "label": (labels * 12)[:12]}


def codes(plan: Any) -> dict[Any, int]:
    """The number of each label that the plan feeds."""
    [encoder] = plan.preprocessing.target.encoders["label"]
    return {label: place for place, label in enumerate(encoder.classes)}


@pytest.mark.parametrize("make", [classifier, zipped_classifier])
def test_a_part_of_a_models_classes_keeps_its_numbers(make: Any) -> None:
    plan = plan_of(make(labels=COLOURS), data(["red", "green"]))
    assert codes(plan) == {"blue": 0, "green": 1, "red": 2}
    assert reasons(plan)["classes"] == "blue, green, red"


def test_whole_numbers_that_a_model_names_are_its_classes() -> None:
    assert codes(plan_of(classifier(labels=(5, 7, 9)), data([9, 5]))) == {5: 0, 7: 1, 9: 2}
    numbers = plan_of(classifier(labels=(5, 7, 9)), data([0, 1, 2])).preprocessing
    assert numbers.target is not None and not numbers.target.encoders


def test_texts_that_a_model_has_no_label_for_are_refused() -> None:
    with pytest.raises(DataError, match="has 'rot', which the model has no label for\nwrite the"):
        plan_of(classifier(labels=COLOURS), data(["green", "rot"]))


@pytest.mark.integration
def test_the_trained_labels_are_those_of_the_data(tmp_path: Path) -> None:
    labels = [("red", "green")[int(value > 0)] for value in X[:, 0]]
    onward.save(
        onward.load(zipped_classifier(labels=COLOURS), any_domain=True), tmp_path / "m.onnx"
    )
    run = onward.train(
        tmp_path / "m.onnx", data(labels), target="label", epochs=40, batch_size=12,
        learning_rate=0.3, optimizer="adam", validation_split=0, runs=str(tmp_path),
    )  # fmt: skip
    found = onnxruntime.InferenceSession(run.model).run(["label"], {"x": X})[0]
    assert found.tolist() == labels


def test_labels_of_a_table_read_by_argmax() -> None:
    op = onward.OpBuilder()
    scores = op.MatMul(
        op.input("x", "float32", ("n", 4)), op.initializer("w", np.ones((4, 3), "f4"))
    )
    names = op.initializer("names", np.array(COLOURS, object))
    label = op.Gather(names, op.ArgMax(scores, axis=1, keepdims=0))
    assert own_classes(op.model(label=label, scores=scores)) == COLOURS
    assert own_classes(onward.load(classifier(labels=(0, 1, 2)), any_domain=True)) == ()


def test_new_classes_do_not_move_those_of_an_earlier_training(tmp_path: Path) -> None:
    first = rows_of()
    first["kind"] = ["dog", "cat"] * 10
    exported = export(plan_of(mlp(classes=4), first, target="kind"), tmp_path / "m.onnx")
    second = {**first, "kind": ["ant", "cat", "dog", "bee"] * 5}
    assert plan_of(exported, second, target="kind").classes == ("cat", "dog", "ant", "bee")
    others = {**first, "kind": ["x", "y"] * 10}
    assert plan_of(exported, others, target="kind").classes[:2] == ("x", "y")


def test_folders_of_a_part_of_the_classes_keep_their_numbers(tmp_path: Path) -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    for name in ("all/ant", "all/bee", "all/cat", "some/bee", "some/cat"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    cnn = onward.new_model("cnn", image=(3, 8, 8), channels=(2,), hidden=4, classes=3)
    exported = export(plan_of(cnn, tmp_path / "all"), tmp_path / "m.onnx")
    plan = plan_of(exported, tmp_path / "some", tmp_path / "some")
    assert plan.classes == ("ant", "bee", "cat")
    assert plan.validation is not None
    fed = np.concatenate([batch.feeds[plan.target] for batch in plan.validation.epoch(0)])
    assert fed.tolist() == [1] * 4 + [2] * 4


def test_a_model_that_scales_its_inputs_gets_them_as_they_are() -> None:
    columns = {name: X[:, place] for place, name in enumerate("abcd")} | {
        "label": np.arange(12) % 3
    }
    plan = plan_of(classifier(), columns)
    [source] = plan.preprocessing.inputs
    np.testing.assert_array_equal(plan.preprocessing.feeds(columns)["x"], X)
    assert reasons(plan)["standardize"] == "no" and len(source.columns) == 4
    scaled = plan_of(classifier(), columns, standardize=True).preprocessing.feeds(columns)["x"]
    assert (
        abs(scaled.mean()) < 0.3 and reasons(plan_of(mlp(), columns))["standardize"] == "4 columns"
    )


def test_a_fitted_model_of_scikit_learn_gets_numbers_as_they_are() -> None:
    nodes = [linear_classifier()]
    nodes[0].input[0] = "x"
    fitted = model(nodes, [table()], ["label", "scores"])
    fitted.producer_name = "skl2onnx"
    columns = {name: X[:, place] for place, name in enumerate("abcd")} | {
        "label": np.arange(12) % 3
    }
    np.testing.assert_array_equal(plan_of(fitted, columns).preprocessing.feeds(columns)["x"], X)


def test_texts_feed_an_input_of_strings() -> None:
    nodes = [
        ml("OneHotEncoder", ["kind"], ["columns"], cats_strings=["cat", "dog", "cow", "ant"]),
        ml("Scaler", ["flat"], ["scaled"], offset=[0.0], scale=[1.0]),
        linear_classifier(),
    ]
    nodes.insert(1, helper.make_node("Flatten", ["columns"], ["flat"]))
    takes = model(nodes, [table("kind", 1, STRING)], ["label", "scores"])
    texts = {"animal": np.array(["cat", "dog", "cow"] * 4, object), "label": np.arange(12) % 3}
    feeds = plan_of(takes, texts).preprocessing.feeds(texts)
    assert feeds["kind"].shape == (12, 1) and feeds["kind"][1, 0] == "dog"
    numbers = {"kind": np.arange(12), "label": np.arange(12) % 3}
    with pytest.raises(DataError, match="takes texts, column 'kind' has int64\nif its values are"):
        plan_of(takes, numbers)
