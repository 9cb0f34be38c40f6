"""Schedules are torch's for two hundred steps, and JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as peers

from onward.errors import OptionError
from onward.optimizers.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Exponential,
    Linear,
    MultiStep,
    OneCycle,
    Polynomial,
    Schedule,
    Step,
    WarmUp,
    schedule_from_dict,
)

LR = 0.3
Peer = Callable[[torch.optim.Optimizer], Any]


def warmed(peer: Peer, start: float, steps: int) -> Peer:
    def build(optimizer: torch.optim.Optimizer) -> Any:
        rise = peers.LinearLR(optimizer, start, total_iters=steps)
        return peers.SequentialLR(optimizer, [rise, peer(optimizer)], [steps])

    return build


def one_cycle(**options: Any) -> Peer:
    return lambda o: peers.OneCycleLR(o, LR, total_steps=200, cycle_momentum=False, **options)


CASES: list[tuple[Schedule, Peer]] = [
    (Constant(), lambda o: peers.LambdaLR(o, lambda step: 1.0)),
    (Constant(factor=0.5, steps=7), lambda o: peers.ConstantLR(o, 0.5, 7)),
    (Linear(steps=90), lambda o: peers.LinearLR(o, 1.0, 0.0, 90)),
    (Linear(steps=90, start_factor=0.2, end_factor=0.7), lambda o: peers.LinearLR(o, 0.2, 0.7, 90)),
    (Polynomial(steps=150, power=2.5), lambda o: peers.PolynomialLR(o, 150, 2.5)),
    (Cosine(steps=200, minimum=0.01), lambda o: peers.CosineAnnealingLR(o, 200, 0.01)),
    (Cosine(steps=30, restarts=True), lambda o: peers.CosineAnnealingWarmRestarts(o, 30)),
    (
        Cosine(steps=9, restarts=True, multiplier=2, minimum=0.02),
        lambda o: peers.CosineAnnealingWarmRestarts(o, 9, 2, 0.02),
    ),
    (OneCycle(steps=200), one_cycle()),
    (OneCycle(steps=200, anneal_strategy="linear"), one_cycle(anneal_strategy="linear")),
    (OneCycle(steps=200, three_phase=True), one_cycle(three_phase=True)),
    (
        OneCycle(steps=200, pct_start=0.45, div_factor=5.0, final_div_factor=10.0),
        one_cycle(pct_start=0.45, div_factor=5.0, final_div_factor=10.0),
    ),
    (OneCycle(steps=200, pct_start=0.0), one_cycle(pct_start=0.0)),
    (OneCycle(steps=200, pct_start=1.0), one_cycle(pct_start=1.0)),
    (Step(size=30, gamma=0.5), lambda o: peers.StepLR(o, 30, 0.5)),
    (MultiStep(milestones=(10, 50, 50, 120)), lambda o: peers.MultiStepLR(o, [10, 50, 50, 120])),
    (Exponential(gamma=0.97), lambda o: peers.ExponentialLR(o, 0.97)),
    (
        WarmUp(steps=20, schedule=Cosine(steps=180), start_factor=0.1),
        warmed(lambda o: peers.CosineAnnealingLR(o, 180), 0.1, 20),
    ),
    (
        WarmUp(steps=15, schedule=Step(size=40), start_factor=0.25),
        warmed(lambda o: peers.StepLR(o, 40), 0.25, 15),
    ),
]


@pytest.mark.filterwarnings("ignore:.*epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize(("schedule", "peer"), CASES, ids=[str(case) for case, _ in CASES])
def test_schedules_match_torch_for_two_hundred_steps(schedule: Schedule, peer: Peer) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=LR)
    theirs = peer(optimizer)
    for step in range(200):
        expected = optimizer.param_groups[0]["lr"]
        assert schedule.rate(step, LR) == pytest.approx(expected, rel=1e-12, abs=1e-12), step
        optimizer.step()
        if step < 199:
            theirs.step()


@pytest.mark.parametrize("schedule", [case for case, _ in CASES], ids=str)
def test_schedules_to_json_and_back(schedule: Schedule) -> None:
    again = schedule_from_dict(json.loads(json.dumps(schedule.to_dict())))
    assert again == schedule and hash(again) == hash(schedule)


def test_every_schedule_has_a_case() -> None:
    assert {type(case).__name__ for case, _ in CASES} == set(SCHEDULES)


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (Linear(steps=10, end_factor=0.5), 0.15),
        (Polynomial(steps=10, end_factor=0.5), 0.15),
        (Cosine(steps=10, minimum=0.01), 0.01),
        (OneCycle(steps=10), 0.3 / 25 / 1e4),
    ],
    ids=str,
)
def test_schedules_are_constant_after_their_end(schedule: Schedule, last: float) -> None:
    assert [schedule.rate(step, LR) for step in (10, 11, 10**9)] == pytest.approx([last] * 3)


def test_one_cycle_can_rise_in_one_step() -> None:
    assert OneCycle(steps=4, pct_start=0.25).rate(0, LR) == pytest.approx(LR)
    assert OneCycle(steps=1).rate(0, LR) == pytest.approx(LR / 25 / 1e4)


def test_warm_up_ends_where_the_schedule_begins() -> None:
    cycle = OneCycle(steps=50)
    warm = WarmUp(steps=10, schedule=cycle)
    assert warm.rate(0, LR) == 0.0
    assert warm.rate(5, LR) == pytest.approx(cycle.rate(0, LR) / 2)
    assert [warm.rate(10 + step, LR) for step in range(50)] == [
        cycle.rate(step, LR) for step in range(50)
    ]
    assert WarmUp(steps=0, schedule=cycle).rate(0, LR) == cycle.rate(0, LR)


def test_warm_ups_nest() -> None:
    nested = WarmUp(steps=2, schedule=WarmUp(steps=2, schedule=Constant(), start_factor=0.5))
    assert [nested.rate(step) for step in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert schedule_from_dict(nested.to_dict()) == nested


def test_restarts_far_away_are_found_at_once() -> None:
    assert Cosine(steps=3, restarts=True).rate(3 * 10**15) == 1.0
    assert Cosine(steps=1, restarts=True, multiplier=2).rate(2**60 - 1) == 1.0


@pytest.mark.parametrize(
    ("build", "law"),
    [
        (lambda: Linear(steps=0), r"Linear\.steps must be a whole number, at least 1, not 0$"),
        (lambda: Cosine(steps=2.5), r"Cosine\.steps must be a whole number, at least 1, not 2\.5"),
        (lambda: Cosine(steps=2, multiplier=0), r"Cosine\.multiplier must be a whole number"),
        (lambda: Cosine(steps=2, restarts=3), r"Cosine\.restarts must be True or False, not 3"),
        (lambda: Constant(steps=-1), r"Constant\.steps must be a whole number, at least 0, not -1"),
        (
            lambda: OneCycle(steps=9, pct_start=2),
            r"OneCycle\.pct_start must be a number from 0 to 1, n",
        ),
        (
            lambda: OneCycle(steps=9, div_factor=0),
            r"OneCycle\.div_factor must be a number above 0, no",
        ),
        (
            lambda: OneCycle(steps=9, anneal_strategy="sin"),
            r"OneCycle\.anneal_strategy must be 'cos' or 'linear', not 'sin'",
        ),
        (
            lambda: Exponential(gamma=float("nan")),
            r"Exponential\.gamma must be a number, at least 0",
        ),
        (
            lambda: MultiStep(milestones=(1.5,)),
            r"MultiStep\.milestones\[0\] must be a whole number, not 1\.5$",
        ),
        (
            lambda: WarmUp(steps=3, schedule=0.1),
            r"WarmUp\.schedule must be a schedule, not 0\.1\nsuch as Constant\(\) or Cosine",
        ),
    ],
)
def test_wrong_settings_are_refused(build: Callable[[], Any], law: str) -> None:
    with pytest.raises(OptionError, match=law):
        build()


@pytest.mark.parametrize(
    ("data", "law"),
    [
        ({"kind": "Cosin"}, r"no schedule is called 'Cosin'\ndid you mean 'Cosine'\?"),
        ({"kind": 3}, r"no schedule is called 3\nthere are 'Constant', 'Cosine', 'Exp"),
        (
            {"steps": 3},
            r"not a saved schedule: \{'steps': 3\} has no 'kind'\ngive what",
        ),
        (
            {"kind": "Cosine", "step": 3},
            r"Cosine has no setting 'step'\ndid you mean 'steps'\?",
        ),
        ({"kind": "Constant", "zzz": 3}, r"Constant has no setting 'zzz'\nit has 'factor', 'st"),
    ],
)
def test_an_invalid_record_of_a_schedule_is_refused(data: Any, law: str) -> None:
    with pytest.raises(OptionError, match=law):
        schedule_from_dict(data)


@pytest.mark.parametrize(
    "schedule", [Exponential(gamma=2.0), Step(size=1, gamma=2.0), Exponential(gamma=2)], ids=repr
)
def test_a_rate_that_overflows_is_refused(schedule: Schedule) -> None:
    assert schedule.rate(1000, 1.0) == 2.0**1000
    law = r" overflows after 1024 times gamma\ntake a gamma of at most 1"
    with pytest.raises(OptionError, match=law):
        schedule.rate(1024, 1.0)


def test_a_record_without_a_required_field_is_refused() -> None:
    law = r"not a saved schedule: {'kind': 'Cosine'} has no 'steps', which a Cosine needs\ngive"
    with pytest.raises(OptionError, match=law):
        schedule_from_dict({"kind": "Cosine"})
