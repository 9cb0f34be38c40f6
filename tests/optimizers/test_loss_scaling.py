"""The loss scale is torch.amp.GradScaler's."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import OptionError
from onward.optimizers.loss_scaling import DynamicLossScale


def by_torch(scaling: DynamicLossScale, steps: list[bool]) -> list[tuple[float, int]]:
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=scaling.initial,
        growth_factor=scaling.growth,
        backoff_factor=scaling.backoff,
        growth_interval=scaling.interval,
    )
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.0)
    seen = []
    for finite in steps:
        scaler.scale(torch.zeros(1))  # the scaler is made at the first use
        p.grad = torch.tensor([1.0 if finite else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        seen.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
    return seen


def by_rule(scaling: DynamicLossScale, steps: list[bool]) -> list[tuple[float, int]]:
    state, seen = scaling.start(), []
    for finite in steps:
        state = scaling.update(json.loads(json.dumps(state)), finite=finite)
        seen.append((state["scale"], int(state["good_steps"])))
    return seen


@given(
    steps=st.lists(st.booleans(), max_size=40),
    growth=st.sampled_from([2.0, 1.7, 1.001]),
    backoff=st.sampled_from([0.5, 0.3]),
    interval=st.integers(1, 4),
)
def test_dynamic_loss_scale_matches_torch(
    steps: list[bool], growth: float, backoff: float, interval: int
) -> None:
    scaling = DynamicLossScale(growth=growth, backoff=backoff, interval=interval)
    assert by_rule(scaling, steps) == by_torch(scaling, steps)


def test_the_scale_never_grows_to_one_without_a_normal_inverse() -> None:
    """torch's grows to 2**127, whose inverse is denormal: zero on x86 while a graph trains."""
    scaling = DynamicLossScale(initial=2.0**125, interval=1)
    steps = [True] * 3
    assert by_rule(scaling, steps) == [(2.0**126, 0)] * 3
    assert by_torch(scaling, steps) == [(2.0**126, 0), (2.0**127, 0), (2.0**127, 0)]


def test_the_scale_may_fall_to_zero_as_in_torch() -> None:
    scaling, steps = DynamicLossScale(initial=2.0**-126), [False] * 25
    assert by_rule(scaling, steps) == by_torch(scaling, steps)
    assert by_rule(scaling, steps)[-1] == (0.0, 0)


def test_defaults_of_dynamic_loss_scale_are_those_of_torch() -> None:
    theirs = torch.amp.GradScaler("cpu").state_dict()
    ours = DynamicLossScale()
    assert (ours.growth, ours.backoff) == (theirs["growth_factor"], theirs["backoff_factor"])
    assert (ours.initial, ours.interval) == (theirs["scale"], theirs["growth_interval"])


@pytest.mark.parametrize(
    ("options", "law"),
    [
        ({"initial": 0}, r"DynamicLossScale\.initial must be a number above 0, not 0$"),
        (
            {"initial": 1e39},
            r"initial must be a number from 1\.17549e-38 to 3\.40282e\+38, for it is a",
        ),
        ({"initial": 1e-40}, r"initial must be a number from .*, for it is a float32, not 1e-40$"),
        ({"growth": 1.0}, r"DynamicLossScale\.growth must be a number above 1, not 1\.0"),
        ({"backoff": 0.0}, r"DynamicLossScale\.backoff must be a number above 0, not 0\.0"),
        (
            {"backoff": 1.0},
            r"DynamicLossScale\.backoff must be a number from 0 to below 1, not 1\.0",
        ),
        ({"interval": 0}, r"DynamicLossScale\.interval must be a whole number, at least 1, not 0"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], law: str) -> None:
    with pytest.raises(OptionError, match=law):
        DynamicLossScale(**options)


@pytest.mark.parametrize("state", [{}, {"scale": 1.0}, {"scale": "x", "good_steps": 0}, None])
def test_a_wrong_state_is_refused(state: Any) -> None:
    law = (
        r"the state of a loss scale must have 'scale' and 'good_steps', not .*\n"
        r"start from DynamicLossScale\.start\(\)"
    )
    with pytest.raises(OptionError, match=law):
        DynamicLossScale().update(state, finite=True)
