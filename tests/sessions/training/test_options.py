"""TrainingOptions: what cannot hold is refused when it is written down."""

from __future__ import annotations

from typing import Any

import pytest

from onward.errors import OptionError
from onward.sessions.training.options import TrainingOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"accumulate": 0}, "accumulate is a number of micro-batches, not 0"),
        ({"clip_norm": -1.0}, "clip_norm is a positive number, not -1.0"),
        ({"clip_value": 0}, "clip_value is a positive number, not 0"),
        ({"loss_scale": 0.0}, "loss_scale is a positive number, not 0.0"),
        ({"frozen": "w1"}, "frozen is a list of names, not one\nwrite "),
        ({"optimiser": 1}, "unexpected keyword argument 'optimiser'"),
    ],
)
def test_a_setting_that_cannot_hold_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainingOptions.of(given)


def test_options_come_as_themselves_as_a_mapping_or_not_at_all() -> None:
    options = TrainingOptions(accumulate=2)
    assert TrainingOptions.of(options) is options
    assert TrainingOptions.of({"accumulate": 2}) == options
    assert TrainingOptions.of(None) == TrainingOptions()
    with pytest.raises(OptionError, match="options are TrainingOptions, not int"):
        TrainingOptions.of(3)  # type: ignore[arg-type]
