"""A column of weights: rows count in training by them, and alike in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import ColumnMissing, DataError, OptionError
from onward.programs.batch_weights import batch_weight
from onward.runner.plan.row_weights import WeightedRows
from onward.sessions.training.session import TrainingSession
from tests.runner.plan.planned_runs import mlp, plan_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype(np.float32)
COUNTS = np.arange(24) % 4  # 0: the row is left out
TARGETS: dict[str, tuple[int, Any, dict[str, Any]]] = {
    "classes": (3, np.arange(24) % 3, {}),
    "smoothed classes": (3, np.arange(24) % 3, {"label_smoothing": 0.1}),
    "two classes": (1, np.arange(24) // 3 % 2, {}),
    "labels": (3, (RNG.normal(size=(24, 3)) > 0).astype(np.int64), {}),
    "a number": (1, RNG.normal(size=24), {}),
    "numbers": (3, RNG.normal(size=(24, 3)), {"loss": "huber"}),
}


def data(rows: Any, target: Any, **more: Any) -> dict[str, Any]:
    return {"x": X[rows], "y": target[rows], **more}


def after_an_epoch(model: Any, given: Any, **settings: Any) -> tuple[float, dict[str, Any]]:
    """The loss of one step on all rows, and the weights after it."""
    rows = len(given["x"])
    plan = plan_of(
        model, given, target="y", batch_size=rows, validation_split=0, optimizer="sgd",
        learning_rate=0.5, **settings,
    )  # fmt: skip
    session = TrainingSession(plan.adapted.model, plan.loss, plan.optimizer, plan.options)
    [batch] = plan.training.epoch(0)
    loss = float(session.step(batch.feeds)["loss"])
    return loss, {name: np.array(each) for name, each in session.parameters.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_a_weight_is_how_often_a_row_is_there(name: str) -> None:
    outputs, target, settings = TARGETS[name]
    model = mlp(classes=outputs)
    repeated = data(np.repeat(np.arange(24), COUNTS), target)
    expected_loss, expected = after_an_epoch(model, repeated, **settings)
    given = data(np.arange(24), target, w=COUNTS * 0.7)
    loss, found = after_an_epoch(model, given, row_weights="w", **settings)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for key, weight in expected.items():
        np.testing.assert_allclose(found[key], weight, atol=1e-6, err_msg=key)


def one_against_the_rest() -> Any:
    """A model with a Sigmoid for each class."""
    op = onward.OpBuilder()
    w = op.initializer("w", np.ones((4, 3), np.float32))
    return op.model(p=op.Sigmoid(op.MatMul(op.input("x", "float32", ("n", 4)), w)))


def shares() -> Any:
    """A model of probabilities without scores."""
    op = onward.OpBuilder()
    w = op.initializer("w", np.ones((4, 3), np.float32))
    parts = op.Softplus(op.MatMul(op.input("x", "float32", ("n", 4)), w))
    return op.model(p=op.Div(parts, op.ReduceSum(parts, np.array([1]), keepdims=1)))


@pytest.mark.parametrize("make", [one_against_the_rest, shares])
def test_losses_of_probabilities_have_weights(make: Any) -> None:
    target = np.arange(24) % 3
    expected, _ = after_an_epoch(make(), data(np.repeat(np.arange(24), COUNTS), target))
    given = data(np.arange(24), target, w=COUNTS)
    found, _ = after_an_epoch(make(), given, row_weights="w")
    assert found == pytest.approx(expected, rel=1e-5)


def test_rows_to_evaluate_on_count_alike() -> None:
    held_out = data(np.arange(8), np.arange(24) % 3)
    given = data(np.arange(24), np.arange(24) % 3, w=COUNTS)
    plan = plan_of(mlp(), given, held_out, target="y", row_weights="w")
    assert plan.validation is not None and plan.weights == "weights"
    [first, *_] = plan.validation.epoch(0)
    assert first.feeds["weights"].tolist() == [1] * 4
    assert "w" not in plan.preprocessing.needed_columns()


def test_parts_of_a_batch_count_by_their_rows() -> None:
    given = data(np.arange(24), np.arange(24) % 3, w=COUNTS)
    plan = plan_of(mlp(), given, target="y", row_weights="w")
    assert isinstance(plan.loss, WeightedRows)
    weight = batch_weight(plan.loss, (), plan.adapted.model.graph)
    assert weight.of({"x": X[:3], "weights": np.zeros(3, np.float32)}) == 3
    assert not weight.is_sum


def test_a_run_with_weights_exports_a_model_without_them(tmp_path: Path) -> None:
    given = data(np.arange(24), np.arange(24) % 3, w=COUNTS)
    onward.save(mlp(), tmp_path / "m.onnx")
    run = onward.train(
        tmp_path / "m.onnx", given, target="y", row_weights="w", runs=str(tmp_path), epochs=1
    )
    assert [each.name for each in onward.InferenceSession(run.model).get_inputs()] == ["x"]
    assert run.metrics["val_loss"] > 0


@pytest.mark.parametrize(
    ("weights", "settings", "error", "message"),
    [
        (COUNTS, {"row_weights": "v"}, ColumnMissing, "row_weights: the data has no column 'v'"),
        (COUNTS, {"row_weights": "y"}, OptionError, "row_weights: column 'y' is the target"),
        (COUNTS - 1, {}, DataError, r"row 0, column 'w' \(row_weights\): -1 is not a number of 0"),
        (COUNTS * np.nan, {}, DataError, r"row 0, column 'w' \(row_weights\): nan is not"),
        (COUNTS * 0, {}, DataError, "every row has 0 in column 'w'"),
        (["a", "b"] * 12, {}, DataError, "column 'w' has text, not one number for each row"),
        (COUNTS, {"ignore_index": -1}, OptionError, "row_weights do not go with ignore_index"),
    ],
)
def test_weights_that_cannot_count_are_refused(
    weights: Any, settings: dict[str, Any], error: Any, message: str
) -> None:
    given = data(np.arange(24), np.arange(24) % 3, w=weights)
    with pytest.raises(error, match=message):
        plan_of(mlp(), given, target="y", validation_split=0, **{"row_weights": "w", **settings})
