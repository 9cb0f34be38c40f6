"""Search spaces: ranges, lists, grids, ablations, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from onward.errors import OptionError
from onward.runner.sweep.search_space import (
    NumberRange,
    ValueList,
    ablation_points,
    grid_points,
    read_search,
    read_search_texts,
)


@pytest.mark.parametrize(
    ("name", "given", "space"),
    [
        ("learning_rate", "1e-4..1e-1:log", NumberRange(1e-4, 1e-1, False, log=True)),
        ("weight_decay", "0..0.1", NumberRange(0.0, 0.1, False)),
        ("epochs", "1..8", NumberRange(1, 8, True)),
        ("batch_size", "16..64:step=16", NumberRange(16, 64, True, step=16)),
        ("batch_size", "16,auto", ValueList((16, "auto"))),
        ("batch_size", [16, 32, 16], ValueList((16, 32))),
        ("ema", "none,0.999", ValueList((None, 0.999))),
        ("flip", "true,false", ValueList((True, False))),
        ("freeze", "a.*+b,c", ValueList((["a.*", "b"], ["c"]))),
        ("data", "../a.csv,../b.csv", ValueList(("../a.csv", "../b.csv"))),
    ],
)
def test_space_is_read_by_the_type_of_the_setting(name: str, given: Any, space: Any) -> None:
    assert read_search({name: given}) == {name: space}


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "learning_rat",
            "1..2",
            "no setting 'learning_rat'\ndid you mean 'learning_rate'",
        ),
        ("learning_rate", "0..1", "learning_rate cannot be '0'"),
        ("learning_rate", "1..0.1", "is empty"),
        ("learning_rate", "1e-4..auto", "must be numbers"),
        ("learning_rate", "1e-4..1:lin", "'lin' is not an option of a range"),
        ("weight_decay", "0..1:log", "above 0"),
        ("epochs", "1..3:step=0.5", "step of whole numbers"),
        ("epochs", "1..3:step=9", "is not an option of a range"),
        ("epochs", "1.5..3", "epochs cannot be '1.5'"),
        ("optimizer", "adamw,sgdd", "optimizer cannot be 'sgdd'\ndid you mean 'sgd'"),
        ("epochs", [], "has no values"),
        ("epochs", 3, "must be a list or a text"),
        ("monitor", "val_loss", "monitor cannot be searched"),
    ],
)
def test_wrong_space_is_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(OptionError) as error:
        read_search({name: given})
    assert message in str(error.value)


def test_values_pass_through_text_unchanged() -> None:
    values = ValueList((None, True, 1, 0.5, "a", ["b"]))
    assert [values.decode(values.encode(each)) for each in values.values] == list(values.values)


def test_flags_are_names_with_values() -> None:
    assert read_search_texts(["batch-size=1,2"]) == {"batch_size": "1,2"}
    with pytest.raises(OptionError, match="--ablate takes NAME=VALUES"):
        read_search_texts(["flip"], "--ablate")
    with pytest.raises(OptionError, match="epochs twice"):
        read_search_texts(["epochs=1", "epochs=2"])


def test_grid_has_every_combination() -> None:
    space = read_search({"flip": [True, False], "epochs": "1,2,3"})
    points = list(grid_points(space))
    assert len(points) == 6 and {"flip": False, "epochs": 3} in points
    with pytest.raises(OptionError, match="a grid needs a list"):
        list(grid_points(read_search({"epochs": "1..3"})))


def test_ablation_changes_one_setting_at_a_time() -> None:
    space = read_search({"flip": "true,false", "ema": "0.9,0.99"})
    points = list(ablation_points(space, {"flip": False, "ema": None}))
    assert points == [
        {"flip": False, "ema": None},
        {"flip": True, "ema": None},
        {"flip": False, "ema": 0.9},
        {"flip": False, "ema": 0.99},
    ]
    with pytest.raises(OptionError, match="an ablation needs a list"):
        list(ablation_points(read_search({"epochs": "1..3"}), {"epochs": 3}))


def test_range_that_is_written_as_a_list_shows_how_ranges_are_written() -> None:
    with pytest.raises(
        OptionError,
        match=r"learning_rate cannot be 'log': it must be a number, or 'auto'\n.*LOW..HIGH:log",
    ):
        read_search({"learning_rate": "1e-4,1e-1,log"})
