"""Losses: graphs that are added to a model, to be differentiated with it.

loss = onward.losses.CrossEntropy(label_smoothing=0.1)
loss = onward.losses.Total({"digit": CrossEntropy(output="digit"), "size": (MSE(), 0.1)})

Names are imported when they are first used, so that importing the package is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.losses.classification import KL as KL
    from onward.losses.classification import BCEWithLogits as BCEWithLogits
    from onward.losses.classification import CrossEntropy as CrossEntropy
    from onward.losses.combined import Graph as Graph
    from onward.losses.combined import Output as Output
    from onward.losses.combined import Total as Total
    from onward.losses.ctc import CTC as CTC
    from onward.losses.distance import Cosine as Cosine
    from onward.losses.distance import Triplet as Triplet
    from onward.losses.loss import Loss as Loss
    from onward.losses.regression import L1 as L1
    from onward.losses.regression import MSE as MSE
    from onward.losses.regression import Huber as Huber
    from onward.losses.regression import SmoothL1 as SmoothL1

_MODULES = {
    "Loss": "onward.losses.loss",
    "CrossEntropy": "onward.losses.classification",
    "BCEWithLogits": "onward.losses.classification",
    "KL": "onward.losses.classification",
    "MSE": "onward.losses.regression",
    "L1": "onward.losses.regression",
    "Huber": "onward.losses.regression",
    "SmoothL1": "onward.losses.regression",
    "Cosine": "onward.losses.distance",
    "Triplet": "onward.losses.distance",
    "CTC": "onward.losses.ctc",
    "Output": "onward.losses.combined",
    "Graph": "onward.losses.combined",
    "Total": "onward.losses.combined",
}

__all__ = [*_MODULES]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'onward.losses' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
