"""Training of ai.onnx.ml: scalers in front, coefficients in attributes, lists of maps behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import onward
from onward.errors import OptionError, UnsupportedModel
from tests.models_ml import (
    W,
    classifier,
    dict_vectorizer,
    ml,
    model,
    scaler,
    table,
    zipped_classifier,
)

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
LABELS = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.3)


def session(proto: onnx.ModelProto, loss: Any, **more: Any) -> onward.TrainingSession:
    return onward.TrainingSession(proto, loss, onward.optimizers.SGD(lr=0.5), **more)


def falls(trained: onward.TrainingSession, feeds: dict[str, Any]) -> bool:
    """Whether steps lower the loss, and move every parameter."""
    before = {name: np.array(value) for name, value in trained.parameters.items()}
    losses = [float(trained.step(feeds)["loss"]) for _ in range(10)]
    moved = [np.abs(np.array(v) - before[n]).max() > 0 for n, v in trained.parameters.items()]
    return losses[-1] < losses[0] and all(moved)


def test_a_network_behind_a_scaler_can_be_trained() -> None:
    """The ranks behind it are known, and it is no parameter itself."""
    weights = [
        numpy_helper.from_array(np.full(shape, 0.1, np.float32), name)
        for name, shape in (("w", (4, 8)), ("v", (8, 3)))
    ]
    nodes = [
        scaler(),
        helper.make_node("MatMul", ["scaled", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    trained = session(
        model(nodes, [table()], [table("y", 3)], weights), onward.losses.MSE(target="t")
    )
    assert list(trained.parameters) == ["w", "v"]
    assert falls(trained, {"x": X, "t": np.ones((16, 3), np.float32)})


@pytest.mark.parametrize("make", [classifier, zipped_classifier], ids=["tensor", "maps"])
def test_a_logistic_regression_is_trained_by_its_coefficients(make: Any) -> None:
    trained = session(make(), onward.losses.CrossEntropy(output="scores"))
    assert list(trained.parameters) == [
        "LinearClassifier.coefficients",
        "LinearClassifier.intercepts",
    ]
    np.testing.assert_array_equal(trained.parameters["LinearClassifier.coefficients"], W)
    assert falls(trained, {"x": X, "labels": LABELS})


def test_one_row_for_two_classes_is_trained() -> None:
    trained = session(
        classifier(rows=1, transform="LOGISTIC", labels=("no", "yes")),
        onward.losses.CrossEntropy(output="scores"),
    )
    assert falls(trained, {"x": X, "labels": (X[:, 2] > 0).astype(np.int64)})


@pytest.mark.parametrize("columns", [1, 4])
def test_a_linear_regression_is_trained_even_with_one_feature(columns: int) -> None:
    node = ml("LinearRegressor", ["x"], ["y"], coefficients=[0.1] * columns, intercepts=[0.0])
    trained = session(
        model([node], [table(columns=columns)], [table("y", 1)]), onward.losses.MSE(target="t")
    )
    assert list(trained.parameters) == [
        "LinearRegressor.coefficients",
        "LinearRegressor.intercepts",
    ]
    x = X[:, :columns]
    assert falls(trained, {"x": x, "t": 1 + 0.3 * x.sum(1, keepdims=True)})


def test_a_list_of_maps_is_returned_as_its_tensor() -> None:
    trained = session(zipped_classifier(), onward.losses.CrossEntropy(output="scores"))
    results = trained.step({"x": X, "labels": LABELS})
    assert {name: np.shape(value) for name, value in results.items()} == {
        "loss": (),
        "label": (16,),
        "scores": (16, 3),
    }
    assert set(trained.predict({"x": X})) == {"label", "scores"}


def test_requested_outputs_are_read_through_maps() -> None:
    options = onward.TrainingOptions(outputs=["maps"])
    loss = onward.losses.CrossEntropy(output="scores")
    trained = session(zipped_classifier(), loss, options=options)
    assert set(trained.step({"x": X, "labels": LABELS})) == {"loss", "scores"}


def test_the_export_is_standard_and_still_gives_maps(tmp_path: Path) -> None:
    trained = session(zipped_classifier(), onward.losses.CrossEntropy(output="scores"))
    for _ in range(3):
        trained.step({"x": X, "labels": LABELS})
    trained.export(tmp_path / "trained.onnx")
    saved = onnx.load(tmp_path / "trained.onnx")
    onnx.checker.check_model(saved)
    assert [node.op_type for node in saved.graph.node if node.domain] == ["Scaler", "ZipMap"]
    assert saved.opset_import == zipped_classifier().opset_import
    labels, maps = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": X})
    expected = trained.predict({"x": X})
    np.testing.assert_array_equal(labels, expected["label"])
    scores = np.array([[row[key] for key in (0, 1, 2)] for row in maps])
    np.testing.assert_allclose(scores, expected["scores"], rtol=1e-5, atol=1e-6)
    start = onnxruntime.InferenceSession(zipped_classifier().SerializeToString())
    assert start.run(None, {"x": X})[1][0] != maps[0]


def test_a_loss_of_a_list_of_maps_names_the_tensor() -> None:
    with pytest.raises(
        OptionError, match=r"'maps', which is a list of maps \(ZipMap\)\n.*'scores'"
    ):
        session(zipped_classifier(), onward.losses.CrossEntropy(output="maps"))


def test_a_model_that_is_fed_maps_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="input 'x' is a map: a training step takes tensors"):
        session(dict_vectorizer(), onward.losses.MSE())
