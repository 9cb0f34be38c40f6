"""Optimizers as graphs, schedules, groups, clipping, loss scaling, averages of weights.

Names are imported when they are first used; only the update graphs need onnx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.optimizers.adafactor import Adafactor as Adafactor
    from onward.optimizers.adagrad import Adagrad as Adagrad
    from onward.optimizers.adam import Adam as Adam
    from onward.optimizers.adam import AdamW as AdamW
    from onward.optimizers.catalogue import optimizer_from_dict as optimizer_from_dict
    from onward.optimizers.catalogue import policy_from_dict as policy_from_dict
    from onward.optimizers.clip import ClipByNorm as ClipByNorm
    from onward.optimizers.clip import ClipByValue as ClipByValue
    from onward.optimizers.ema import EMA as EMA
    from onward.optimizers.groups import Group as Group
    from onward.optimizers.groups import resolve as resolve
    from onward.optimizers.lamb import LAMB as LAMB
    from onward.optimizers.lion import Lion as Lion
    from onward.optimizers.loss_scaling import DynamicLossScale as DynamicLossScale
    from onward.optimizers.muon import Muon as Muon
    from onward.optimizers.optimizer import Optimizer as Optimizer
    from onward.optimizers.rmsprop import RMSprop as RMSprop
    from onward.optimizers.schedules import Constant as Constant
    from onward.optimizers.schedules import Cosine as Cosine
    from onward.optimizers.schedules import Exponential as Exponential
    from onward.optimizers.schedules import Linear as Linear
    from onward.optimizers.schedules import MultiStep as MultiStep
    from onward.optimizers.schedules import OneCycle as OneCycle
    from onward.optimizers.schedules import Polynomial as Polynomial
    from onward.optimizers.schedules import Schedule as Schedule
    from onward.optimizers.schedules import Step as Step
    from onward.optimizers.schedules import WarmUp as WarmUp
    from onward.optimizers.schedules import schedule_from_dict as schedule_from_dict
    from onward.optimizers.sgd import SGD as SGD
    from onward.optimizers.update_models import flat_update as flat_update
    from onward.optimizers.update_models import named_update as named_update

_NAMES = {
    "adafactor": ["Adafactor"],
    "adagrad": ["Adagrad"],
    "adam": ["Adam", "AdamW"],
    "ema": ["EMA"],
    "catalogue": ["optimizer_from_dict", "policy_from_dict"],
    "clip": ["ClipByNorm", "ClipByValue"],
    "update_models": ["flat_update", "named_update"],
    "groups": ["Group", "resolve"],
    "lamb": ["LAMB"],
    "lion": ["Lion"],
    "muon": ["Muon"],
    "optimizer": ["Optimizer"],
    "rmsprop": ["RMSprop"],
    "loss_scaling": ["DynamicLossScale"],
    "schedules": [
        "Constant",
        "Cosine",
        "Exponential",
        "Linear",
        "MultiStep",
        "OneCycle",
        "Polynomial",
        "Schedule",
        "Step",
        "WarmUp",
        "schedule_from_dict",
    ],
    "sgd": ["SGD"],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'onward.optimizers' has no attribute {name!r}")
        value = getattr(import_module(f"onward.optimizers.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
