"""Subscribers to the modules of a model: onnxruntime.training.utils.hooks' names.

The names load, and torch with them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.pytorch.hooks.statistics import StatisticsSubscriber as StatisticsSubscriber
    from onward.pytorch.hooks.statistics import inspect_activation as inspect_activation
    from onward.pytorch.hooks.subscriber import SubscriberBase as SubscriberBase
    from onward.pytorch.hooks.subscriber_manager import (
        GlobalSubscriberManager as GlobalSubscriberManager,
    )
    from onward.pytorch.hooks.subscriber_manager import SubscriberManager as SubscriberManager
    from onward.pytorch.hooks.subscriber_manager import (
        no_increase_global_step as no_increase_global_step,
    )
    from onward.pytorch.hooks.zero_stage3 import ZeROOffloadSubscriber as ZeROOffloadSubscriber
    from onward.pytorch.hooks.zero_stage3 import (
        configure_ort_compatible_zero_stage3 as configure_ort_compatible_zero_stage3,
    )

_STATISTICS = "onward.pytorch.hooks.statistics"
_MANAGER = "onward.pytorch.hooks.subscriber_manager"
_ZERO = "onward.pytorch.hooks.zero_stage3"
_HOMES = {  # name -> (module, its name there)
    "GlobalSubscriberManager": (_MANAGER, "GlobalSubscriberManager"),
    "SubscriberManager": (_MANAGER, "SubscriberManager"),
    "no_increase_global_step": (_MANAGER, "no_increase_global_step"),
    "SubscriberBase": ("onward.pytorch.hooks.subscriber", "SubscriberBase"),
    "RuntimeStates": ("onward.pytorch.hooks.subscriber", "RuntimeStates"),
    "StatisticsSubscriber": (_STATISTICS, "StatisticsSubscriber"),
    "inspect_activation": (_STATISTICS, "inspect_activation"),
    "_InspectActivation": (_STATISTICS, "InspectActivation"),
    "ZeROOffloadSubscriber": (_ZERO, "ZeROOffloadSubscriber"),
    "configure_ort_compatible_zero_stage3": (_ZERO, "configure_ort_compatible_zero_stage3"),
}
__all__ = [name for name in _HOMES if not name.startswith("_")]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            module, attribute = _HOMES[name]
            return getattr(import_module(module), attribute)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
