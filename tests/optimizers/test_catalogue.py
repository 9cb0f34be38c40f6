"""Optimizers and policies as JSON and back; settings that cannot hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onward.errors import OptionError
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.catalogue import (
    OPTIMIZERS,
    POLICIES,
    Policy,
    optimizer_from_dict,
    policy_from_dict,
)
from onward.optimizers.clip import ClipByNorm, ClipByValue
from onward.optimizers.ema import EMA
from onward.optimizers.lamb import LAMB
from onward.optimizers.lion import Lion
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.rmsprop import RMSprop
from onward.optimizers.sgd import SGD

EACH: list[Optimizer] = [
    SGD(lr=0.1, momentum=0.9, nesterov=True),
    Adam(betas=(0.5, 0.6)),
    AdamW(style="transformers", correct_bias=False),
    LAMB(weight_decay=0.1),
    RMSprop(centered=True),
    Adagrad(initial_accumulator_value=0.5),
    Adafactor(eps=(None, 0.1)),
    Lion(betas=(0.5, 0.6)),
    Muon(ns_coefficients=(1.0, 2.0, 3.0)),
]
POLICY: list[Policy] = [
    ClipByNorm(max_norm=1.0),
    ClipByValue(limit=2.0),
    DynamicLossScale(initial=8.0),
    EMA(decay=0.9, warm_up=True),
]


@pytest.mark.parametrize("optimizer", EACH, ids=repr)
def test_optimizers_json_and_back(optimizer: Optimizer) -> None:
    again = optimizer_from_dict(json.loads(json.dumps(optimizer.to_dict())))
    assert again == optimizer and hash(again) == hash(optimizer)


@pytest.mark.parametrize("policy", POLICY, ids=repr)
def test_policies_json_and_back(policy: Policy) -> None:
    assert policy_from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_the_lists_are_complete() -> None:
    assert {type(each).__name__ for each in EACH} == set(OPTIMIZERS)
    assert {type(each).__name__ for each in POLICY} == set(POLICIES)


def test_an_object_that_is_not_an_optimizer_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no optimizer is called 'Adan'\ndid you mean 'Adam"):
        optimizer_from_dict({"kind": "Adan"})
    with pytest.raises(OptionError, match=r"AdamW has no setting 'beta'\ndid you mean 'betas'\?"):
        optimizer_from_dict({"kind": "AdamW", "beta": 0.9})
    with pytest.raises(OptionError, match=r"not a saved policy: 3 has no 'kind'\ngive"):
        policy_from_dict(3)  # type: ignore[arg-type]


NUMBERS = {
    SGD: ["lr", "momentum", "dampening", "weight_decay"],
    Adam: ["lr", "eps", "weight_decay"],
    AdamW: ["lr", "eps", "weight_decay"],
    LAMB: ["lr", "eps", "weight_decay"],
    RMSprop: ["lr", "alpha", "eps", "weight_decay", "momentum"],
    Adagrad: ["lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"],
    Adafactor: ["lr", "d", "weight_decay"],
    Lion: ["lr", "weight_decay"],
    Muon: ["lr", "weight_decay", "momentum", "eps", "ns_steps"],
}


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "0.1", None, True])
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in NUMBERS.items() for name in names]
)
def test_wrong_numbers_are_refused(kind: Any, name: str, wrong: Any) -> None:
    law = rf"{kind.__name__}\.{name} must be a (whole )?number.*, not .*$"
    with pytest.raises(OptionError, match=law):
        kind(**{name: wrong})


FLAGS = {
    SGD: ["nesterov", "maximize"],
    Adam: ["amsgrad", "maximize"],
    AdamW: ["amsgrad", "maximize", "correct_bias"],
    LAMB: ["correct_bias"],
    RMSprop: ["centered", "maximize"],
    Adagrad: ["maximize"],
    Adafactor: ["maximize"],
    Muon: ["nesterov"],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in FLAGS.items() for name in names]
)
def test_wrong_flags_are_refused(kind: Any, name: str) -> None:
    with pytest.raises(OptionError, match=rf"{kind.__name__}\.{name} must be True or False, not 1"):
        kind(**{name: 1})


@pytest.mark.parametrize("kind", [Adam, AdamW, LAMB, Lion])
def test_wrong_betas_are_refused(kind: Any) -> None:
    name = kind.__name__
    for betas in ((0.9,), 0.9, "ab"):
        law = rf"{name}\.betas must be two numbers, not .*$"
        with pytest.raises(OptionError, match=law):
            kind(betas=betas)
    law = rf"{name}\.betas\[1\] must be a number from 0 to below 1, not 1\.0$"
    with pytest.raises(OptionError, match=law):
        kind(betas=(0.9, 1.0))
    assert kind(betas=[0.5, 0.6]).betas == (0.5, 0.6)


@pytest.mark.parametrize(
    ("build", "law"),
    [
        (
            lambda: AdamW(style="peer"),
            r"AdamW\.style must be 'torch' or 'transformers', not 'peer'",
        ),
        (
            lambda: Muon(adjust_lr_fn="other"),
            r"Muon\.adjust_lr_fn must be 'original' or 'match_rms_adamw', not 'other'",
        ),
        (
            lambda: RMSprop(alpha=1.0),
            r"RMSprop\.alpha must be a number from 0 to below 1, not 1\.0",
        ),
        (lambda: SGD(dampening=2.0), r"SGD\.dampening must be a number from 0 to 1, not 2\.0"),
        (
            lambda: Adafactor(beta2_decay=0.5),
            r"Adafactor\.beta2_decay must be a number from -inf to 0, not 0\.5",
        ),
    ],
)
def test_other_wrong_settings_are_refused(build: Any, law: str) -> None:
    with pytest.raises(OptionError, match=law):
        build()
