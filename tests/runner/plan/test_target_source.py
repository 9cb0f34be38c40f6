"""Labels and categories: any whole numbers, and those that only rows that are held out have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.errors import DataError
from tests.runner.plan.planned_runs import export, mlp, plan_of, reasons

RNG = np.random.default_rng(0)
NUMBERS = {name: RNG.normal(size=60) for name in "abcd"}
PLACES = np.arange(60) % 3


def labelled(labels: Any) -> dict[str, Any]:
    return {**NUMBERS, "y": labels}


def fed(plan: Any) -> Any:
    """The labels that the rows are trained on, in their order."""
    found = np.zeros(60, np.int64)
    for batch in plan.training.epoch(0):
        found[batch.positions] = batch.feeds[plan.target]
    return found[plan.training.positions]


@pytest.mark.parametrize("labels", [(3, 7, 9), (-1, 0, 1), (0, 2, 5), (1, 2, 3), (3.0, 7.0, 9.0)])
def test_whole_numbers_stand_for_the_outputs_in_their_order(labels: tuple[float, ...]) -> None:
    plan = plan_of(mlp(), labelled(np.array(labels)[PLACES]), target="y")
    assert plan.classes == tuple(map(int, labels))
    np.testing.assert_array_equal(fed(plan), PLACES[plan.training.positions])
    assert plan.preprocessing.decode({plan.output: np.eye(3)}) == [*plan.classes]


def test_two_numbers_stand_for_two_outputs() -> None:
    plan = plan_of(mlp(classes=2), labelled(np.array([-1, 1])[PLACES % 2]), target="y")
    assert plan.classes == (-1, 1) and set(fed(plan)) == {0, 1}


def test_numbers_of_other_many_classes_are_refused() -> None:
    with pytest.raises(DataError, match="label 7 in row 1, column 'y', is out of range"):
        plan_of(mlp(classes=4), labelled(np.array([3, 7, 9])[PLACES]), target="y")


def test_a_part_of_the_numbers_keeps_its_outputs(tmp_path: Path) -> None:
    first = plan_of(mlp(), labelled(np.array([3, 7, 9])[PLACES]), target="y")
    exported = export(first, tmp_path / "m.onnx")
    plan = plan_of(exported, labelled(np.array([7, 9])[PLACES % 2]), target="y")
    assert plan.classes == (3, 7, 9) and set(fed(plan)) == {1, 2}
    with pytest.raises(DataError, match="column 'y': 0 is not one of the 3 categories"):
        plan_of(exported, labelled(PLACES), target="y")


@pytest.mark.parametrize("names", [("x", "y", "z"), (3, 7, 9)])
def test_labels_that_only_validation_data_has_are_classes(names: tuple[Any, ...]) -> None:
    kinds = np.array(names, object if isinstance(names[0], str) else np.int64)
    training = labelled(kinds[PLACES % 2])
    plan = plan_of(mlp(), training, labelled(kinds[PLACES]), target="y")
    assert plan.classes == names and reasons(plan)["classes not trained"] == str(names[2])
    assert plan.validation is not None
    held_out = np.concatenate([each.feeds[plan.target] for each in plan.validation.epoch(0)])
    np.testing.assert_array_equal(held_out, PLACES)
    one = "needs 2 classes, target 'y' has 3, .* only in rows that are held out\nuse a model of 3"
    with pytest.raises(DataError, match=one):
        plan_of(mlp(classes=1), training, labelled(kinds[PLACES]), target="y")


@pytest.mark.parametrize("names", [("w", "x", "y", "z"), (0, 1, 2, 3)])
def test_labels_of_validation_data_without_an_output_are_refused_by_row(names: Any) -> None:
    kinds = np.array(names, object if isinstance(names[0], str) else np.int64)
    held_out = labelled(kinds[PLACES])
    held_out["y"][5] = kinds[3]
    with pytest.raises(DataError, match="row 5, column 'y'"):
        plan_of(mlp(), labelled(kinds[PLACES]), held_out, target="y")


def test_a_category_that_is_held_out_by_chance_has_a_column() -> None:
    texts = np.array(["red", "green", "blue"], object)[PLACES]
    for row in range(0, 60, 5):
        colours = texts.copy()
        colours[row] = "grey"
        data = {"a": NUMBERS["a"], "colour": colours, "y": PLACES}
        plan = plan_of(mlp(features=5), data, target="y")
        assert plan.validation is not None
        widths = {each.feeds["x"].shape[1] for each in plan.validation.epoch(0)}
        assert widths == {5}


def test_a_category_of_validation_data_alone_is_named_before_the_run() -> None:
    texts = np.array(["red", "green", "blue"], object)
    training = {"a": NUMBERS["a"], "colour": texts[PLACES % 2], "y": PLACES}
    held_out = {**training, "colour": texts[PLACES]}
    plan = plan_of(mlp(features=4), training, held_out, target="y")
    assert plan.preprocessing.feeds(held_out)["x"].shape == (60, 4)
    with pytest.raises(
        DataError, match="only rows that are held out have 'blue' in column 'colour'"
    ):
        plan_of(mlp(features=3), training, held_out, target="y")
