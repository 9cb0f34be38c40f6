"""Settings of learned rounding, and their form on the command line."""

from __future__ import annotations

import pytest

from onward.compress import Tune
from onward.errors import OptionError


@pytest.mark.parametrize(
    ("text", "seconds", "steps"),
    [
        ("5min", 300, None),
        ("90s", 90, None),
        ("1.5 h", 5400, None),
        ("200steps", None, 200),
        ("1 step", None, 1),
    ],
)
def test_a_time_or_a_number_of_steps_is_read(
    text: str, seconds: float | None, steps: int | None
) -> None:
    read = Tune.read(text)
    assert (read.seconds, read.steps) == (seconds, steps)


@pytest.mark.parametrize("text", ["", "5", "min", "-1min", "0s", "5 parsecs"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(
        OptionError, match="is neither a duration nor a number of steps\ngive one such as 90s, 5min"
    ):
        Tune.read(text)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(OptionError, match="steps"):
        Tune(steps=0)
    with pytest.raises(OptionError, match="learning_rate"):
        Tune(learning_rate=-1.0)
