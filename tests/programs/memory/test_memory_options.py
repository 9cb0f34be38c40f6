"""Memory checks what it is given."""

from __future__ import annotations

from typing import Any

import pytest

from onward import Memory, TrainingOptions
from onward.errors import OptionError


@pytest.mark.parametrize(
    ("given", "law"),
    [
        ({"level": 3}, r"Memory\.level must be"),
        ({"budget": "lots"}, r"Memory\.budget must be a number of bytes above 0, or text such as"),
        ({"budget": "150%"}, r"Memory\.budget must be"),
        ({"budget": 0}, r"Memory\.budget must be a number of bytes above 0"),
        ({"stash": "int4"}, r"Memory\.stash must be 'int8'"),
        ({"plan": "*gelu*"}, r"Memory\.plan must be a list of names, not one"),
        ({"offload": 1}, r"Memory\.offload must be True or False"),
        ({"sizes": {"batch": 0}}, r"Memory\.sizes\['batch'\] must be"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, Any], law: str) -> None:
    with pytest.raises(OptionError, match=law):
        Memory(**given)


def test_budgets_are_read_with_their_units() -> None:
    budgets = {"8GiB": 8 << 30, "1.5 MB": 1_500_000, "25%": 100, 12: 12}
    for given, expected in budgets.items():
        assert Memory(budget=given).budget_bytes(400) == expected


def test_level_is_2_with_a_budget() -> None:
    assert Memory(budget="50%").highest_level == 2 and Memory().highest_level == 0
    assert Memory(budget="50%", level=1).highest_level == 1


def test_training_options_take_a_memory() -> None:
    with pytest.raises(OptionError, match=r"TrainingOptions\.memory must be a Memory"):
        TrainingOptions(memory="50%")  # type: ignore[arg-type]
