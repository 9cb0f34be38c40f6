"""Settings: known names, checked values, and errors with the class, the field and the value."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pydoc
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import OptionAttributeError, OptionError
from onward.optimizers.adam import AdamW
from onward.optimizers.schedules import Cosine
from onward.settings import (
    FLOAT32_LARGEST,
    FLOAT32_SMALLEST,
    CheckedSettings,
    finite_number,
    flag,
    seconds,
    whole_number,
)


class Lamp(CheckedSettings):
    _checks = {"brightness": whole_number(0, 3, "give 0 to 3"), "on": flag, "off_after": seconds}  # noqa: RUF012
    _absent = {"colour": "paint it"}  # noqa: RUF012


def test_only_known_names_are_set_and_read() -> None:
    lamp: Any = Lamp()
    lamp.brightness = 2
    with pytest.raises(OptionAttributeError, match=r"Lamp has no attribute 'bright'\ndid you mean"):
        lamp.bright = 2
    with pytest.raises(OptionAttributeError, match=r"onward.Lamp has no 'colour'\npaint it"):
        _ = lamp.colour
    with pytest.raises(
        OptionError, match=r"Lamp.brightness must be a whole number from 0 to 3, not 4"
    ):
        lamp.brightness = 4
    assert lamp.brightness == 2


@pytest.mark.parametrize(
    "options", [onward.TrainingOptions(), onward.ModelLimits()], ids=lambda o: type(o).__name__
)
def test_setting_a_frozen_option_is_refused(options: Any) -> None:
    name = dataclasses.fields(options)[0].name
    kind = type(options).__name__
    law = rf"{kind}.{name} cannot be set: a {kind} stays as it was made\nmake another one: data"
    with pytest.raises(AttributeError, match=law):
        setattr(options, name, ())
    with pytest.raises(OptionError, match=rf"{kind} has no attribute '{name}s'\ndid you mean"):
        setattr(options, f"{name}s", ())
    assert dataclasses.replace(options) == options


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (onward.SessionOptions, "intra_op_threads", "intra_op_num_threads"),
        (onward.RunOptions, "timeot", "timeout"),
        (onward.TrainingOptions, "acumulate", "accumulate"),
        (onward.ModelLimits, "node", "nodes"),
    ],
)
def test_an_unknown_keyword_is_refused_with_similar_names(kind: Any, name: str, meant: str) -> None:
    law = rf"{kind.__name__} has no setting '{name}'\ndid you mean '{meant}'"
    with pytest.raises(TypeError, match=law):
        kind(**{name: 1})
    with pytest.raises(OptionError, match=law):
        kind(**{name: 1})
    assert meant in inspect.signature(kind).parameters


def option_classes() -> Iterator[type]:
    """The public classes of settings: options, limits, losses, optimizers, schedules, groups."""
    yield from (onward.SessionOptions, onward.TrainingOptions, onward.ModelLimits)
    for package in (onward.losses, onward.optimizers):
        for name in package.__all__:
            public = getattr(package, name)
            if isinstance(public, type) and dataclasses.is_dataclass(public):
                yield public


def explained_by_help(options: type) -> list[str]:
    """The attributes that help() shows with an explanation, above the methods."""
    shown = pydoc.render_doc(options, renderer=pydoc.plaintext).partition("Methods defined")[0]
    return re.findall(r"^ \|      (\w+): \S", shown, re.M)


@pytest.mark.parametrize("options", list(option_classes()))
def test_help_explains_every_field(options: Any) -> None:
    assert explained_by_help(options) == [field.name for field in dataclasses.fields(options)]


def test_help_explains_every_setting_of_a_run() -> None:
    settings = {n for n in (*vars(onward.RunOptions()), "terminate") if not n.startswith("_")}
    assert set(explained_by_help(onward.RunOptions)) == settings


def test_numpy_numbers_become_python_numbers() -> None:
    made = AdamW(lr=np.float32(0.5), betas=[np.float64(0.5), 0])  # type: ignore[arg-type]
    assert made == AdamW(lr=0.5, betas=(0.5, 0))
    assert json.loads(json.dumps(made.to_dict()))["betas"] == [0.5, 0]
    assert json.loads(json.dumps(Cosine(steps=np.int64(3)).to_dict()))["steps"] == 3


@pytest.mark.parametrize("given", [True, "1", None, 1j, np.nan, -np.inf, np.ones(1), 10**400])
def test_finite_number_is_none_for_anything_else(given: Any) -> None:
    assert finite_number(given) is None
    with pytest.raises(OptionError, match=r"AdamW\.lr must be a number, at least 0, not .*$"):
        AdamW(lr=given)


def test_finite_number_keeps_int_and_float() -> None:
    assert repr(finite_number(3)) == "3" and repr(finite_number(3.0)) == "3.0"
    assert finite_number(Fraction(1, 2)) == 0.5


def test_float32_limits_are_those_of_numpy() -> None:
    limits = np.finfo(np.float32)
    assert (float(limits.tiny), float(limits.max)) == (FLOAT32_SMALLEST, FLOAT32_LARGEST)
