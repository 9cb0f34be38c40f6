"""Checks of settings: whose numbers they are does not matter, what they are does."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from onward.errors import OptionError
from onward.optimizers.adam import AdamW
from onward.optimizers.schedules import Cosine
from onward.optimizers.setting_checks import LARGEST, SMALLEST, plain_number


def test_numbers_of_numpys_become_plain() -> None:
    made = AdamW(lr=np.float32(0.5), betas=[np.float64(0.5), 0])  # type: ignore[arg-type]
    assert made == AdamW(lr=0.5, betas=(0.5, 0))
    assert json.loads(json.dumps(made.to_dict()))["betas"] == [0.5, 0]
    assert json.loads(json.dumps(Cosine(steps=np.int64(3)).to_dict()))["steps"] == 3


@pytest.mark.parametrize("given", [True, "1", None, 1j, np.nan, -np.inf, np.ones(1), 10**400])
def test_what_is_no_finite_number_is_none(given: Any) -> None:
    assert plain_number(given) is None
    with pytest.raises(OptionError, match=r"AdamW\.lr is a number, at least 0, not .*\ngive lr"):
        AdamW(lr=given)


def test_numbers_stay_what_they_are() -> None:
    assert repr(plain_number(3)) == "3" and repr(plain_number(3.0)) == "3.0"
    assert plain_number(Fraction(1, 2)) == 0.5


def test_the_bounds_of_a_scale_are_those_of_float32() -> None:
    limits = np.finfo(np.float32)
    assert (float(limits.tiny), float(limits.max)) == (SMALLEST, LARGEST)
