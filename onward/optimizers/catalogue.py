"""Optimizers and policies by name, to restore them from the output of to_dict()."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.clip import ClipByNorm, ClipByValue
from onward.optimizers.ema import EMA
from onward.optimizers.json_records import restore
from onward.optimizers.lamb import LAMB
from onward.optimizers.lion import Lion
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.rmsprop import RMSprop
from onward.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.__name__: kind
    for kind in (SGD, Adam, AdamW, LAMB, RMSprop, Adagrad, Adafactor, Lion, Muon)
}
Policy = ClipByNorm | ClipByValue | DynamicLossScale | EMA
POLICIES: dict[str, type[Policy]] = {
    kind.__name__: kind for kind in (ClipByNorm, ClipByValue, DynamicLossScale, EMA)
}


def optimizer_from_dict(data: Mapping[str, Any]) -> Optimizer:
    """The optimizer that `to_dict` wrote.

    >>> optimizer_from_dict(AdamW(lr=0.01).to_dict()) == AdamW(lr=0.01)
    True
    """
    return restore(data, OPTIMIZERS, "optimizer")


def policy_from_dict(data: Mapping[str, Any]) -> Policy:
    """The clipping, loss scale or average that `to_dict` wrote."""
    return restore(data, POLICIES, "policy")
