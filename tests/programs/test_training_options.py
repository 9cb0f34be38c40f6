"""TrainingOptions: what cannot hold is refused when it is written down."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import OptionError
from onward.optimizers.groups import Group
from onward.programs.training_options import TrainingOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"accumulate": 0}, r"accumulate must be a whole number, at least 1, not 0$"),
        ({"accumulate": 2.5}, "accumulate must be a whole number, at least 1, not 2.5"),
        ({"accumulate": True}, "accumulate must be a whole number, at least 1, not True"),
        ({"clip_norm": -1.0}, "clip_norm must be a number above 0, not -1.0"),
        ({"clip_norm": "1"}, "clip_norm must be a number above 0, not '1'"),
        ({"clip_norm": float("inf")}, "clip_norm must be a number above 0, not inf"),
        ({"clip_value": 0}, "clip_value must be a number above 0, not 0"),
        ({"clip_value": 10**400}, "clip_value must be a number above 0, not 1000"),
        ({"loss_scale": 0.0}, "loss_scale must be a number above 0, not 0.0"),
        ({"loss_scale": "big"}, "loss_scale must be a number above 0, not 'big'"),
        ({"loss_scale": float("inf")}, "loss_scale must be a number above 0, not inf"),
        (
            {"loss_scale": 1e-40},
            "loss_scale must be a number from 1.17549e-38 to .*, for it is a floa",
        ),
        ({"seed": -1}, "seed must be a whole number, at least 0, not -1"),
        ({"seed": None}, "seed must be a whole number, at least 0, not None"),
        (
            {"schedule": "cosine"},
            r"schedule must be a schedule, not 'cosine'\nsuch as Cosine\(steps=",
        ),
        ({"average": 0.9}, r"average must be an EMA, not 0.9\nsuch as EMA\(decay=0.999\)"),
        ({"groups": "a"}, r"groups must be a list of Group, not one\nwrite \['a'\]"),
        (
            {"groups": Group(parameters="*")},
            r"groups must be a list of Group, not one\nwrite \[Group",
        ),
        (
            {"groups": [3]},
            r"groups must be a list of Group, not \[3\]\nsuch as \[Group\(parameters=",
        ),
        ({"frozen": "w1"}, r"frozen must be a list of names, not one\nwrite \['w1'\]"),
        ({"frozen": [3]}, r"frozen must be a list of names, not \[3\]\nsuch as \['encoder"),
        ({"frozen": None}, "frozen must be a list of names, not None"),
        ({"trainable": 3}, "trainable must be a list of names, not 3"),
        (
            {"frozen_batch_norms": [None]},
            r"frozen_batch_norms must be a list of names, not \[None\]",
        ),
        ({"outputs": [3]}, r"outputs must be a list of names, not \[3\]"),
        (
            {"state": 3},
            r"state must be a dictionary of names, not 3\nsuch as {'count': 'new_count'}",
        ),
        ({"state": {"a": 3}}, "state must be a dictionary of names, not {'a': 3}"),
        (
            {"rules": "all"},
            r"rules must be a table of gradient rules, not 'all'\nsuch as GRADIENTS | mi",
        ),
        ({"unbiased_variance": "no"}, "unbiased_variance must be True or False, not 'no'"),
        ({"skip_nonfinite": 3}, "skip_nonfinite must be True or False, not 3"),
        ({"optimiser": 1}, r"there is no option 'optimiser'\nthere are 'trainable', 'frozen'"),
        ({"freezen": 1}, r"there is no option 'freezen'\ndid you mean 'frozen'"),
        ({3: 1}, r"there is no option 3\nthere are"),
    ],
)
def test_a_wrong_setting_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TrainingOptions.of(given)


def test_numpy_numbers_become_python_numbers_and_lists_tuples() -> None:
    options = TrainingOptions(
        accumulate=np.int64(2), clip_norm=np.float32(0.5), seed=np.uint8(3), frozen={"a": 1}.keys()
    )
    assert options == TrainingOptions(accumulate=2, clip_norm=0.5, seed=3, frozen=("a",))
    assert json.dumps([options.accumulate, options.clip_norm, options.seed]) == "[2, 0.5, 3]"


def test_custom_rules_are_accepted() -> None:
    assert TrainingOptions(rules=onward.GRADIENTS).rules is onward.GRADIENTS


def test_options_may_be_an_object_a_dictionary_or_none() -> None:
    options = TrainingOptions(accumulate=2)
    assert TrainingOptions.of(options) is options
    assert TrainingOptions.of({"accumulate": 2}) == options
    assert TrainingOptions.of(None) == TrainingOptions()
    law = r"options must be TrainingOptions, not int\ngive them, or a dictionary of the same names"
    with pytest.raises(OptionError, match=law):
        TrainingOptions.of(3)  # type: ignore[arg-type]
