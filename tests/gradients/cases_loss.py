"""Cases of rules/loss.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, integers, normal, positive


def _loss(operator: str, note: str, x: Any, labels: Any, weight: bool = False, **rest: Any) -> Case:
    outputs = rest.pop("outputs", 1)
    feeds = {"x": x, "labels": labels}
    if weight:
        feeds["w"] = positive(x.shape[1])

    def build(op: Any, x: Any, labels: Any, w: Any = None) -> Any:
        return getattr(op, operator)(x, labels, w, outputs=outputs, **rest)

    # torch's nll_loss, which our kernel takes for two axes, has no gradient of the weights
    return Case(operator, build, feeds, note, autograd=not weight or x.ndim > 2)


_X, _LABELS = normal(4, 5), np.array([1, 0, 4, 1])
_IMAGE, _PIXELS = normal(2, 3, 4, 2), integers(0, 3, 2, 4, 2)
_HOLES = np.array([1, -100, 4, 1])
_SETTINGS: dict[str, dict[str, Any]] = {
    "mean": {"x": _X, "labels": _LABELS},
    "sum": {"x": _X, "labels": _LABELS, "reduction": "sum"},
    "none": {"x": _X, "labels": _LABELS, "reduction": "none"},
    "int32 labels": {"x": _X, "labels": _LABELS.astype(np.int32)},
    "weights, mean": {"x": _X, "labels": _LABELS, "weight": True},
    "weights, sum": {"x": _X, "labels": _LABELS, "weight": True, "reduction": "sum"},
    "weights, none": {"x": _X, "labels": _LABELS, "weight": True, "reduction": "none"},
    "ignored, mean": {"x": _X, "labels": _HOLES, "ignore_index": -100},
    "ignored, none": {"x": _X, "labels": _HOLES, "ignore_index": -100, "reduction": "none"},
    "ignored class": {"x": _X, "labels": _LABELS, "ignore_index": 1},
    "ignored and weights": {"x": _X, "labels": _HOLES, "ignore_index": -100, "weight": True},
    "ignored and weights, sum": {
        "x": _X,
        "labels": _HOLES,
        "ignore_index": -100,
        "weight": True,
        "reduction": "sum",
    },
    "more axes": {"x": _IMAGE, "labels": _PIXELS},
    "more axes, weights, none": {
        "x": _IMAGE,
        "labels": _PIXELS,
        "weight": True,
        "reduction": "none",
    },
    "more axes, ignored, weights": {
        "x": _IMAGE,
        "labels": _PIXELS,
        "weight": True,
        "ignore_index": 2,
    },
    "five axes, weights": {
        "x": normal(2, 3, 2, 1, 2),
        "labels": integers(0, 3, 2, 2, 1, 2),
        "weight": True,
    },
}

CASES = [
    Case(
        "SoftmaxCrossEntropyLoss",
        lambda op, x, labels, w: op.SoftmaxCrossEntropyLoss(x, labels, w, ignore_index=0),
        {"x": _X, "labels": _LABELS, "w": positive(5)},
        "without its weights",
        wrt=("x",),
    ),
    *(_loss("SoftmaxCrossEntropyLoss", note, **rest) for note, rest in _SETTINGS.items()),
    *(_loss("NegativeLogLikelihoodLoss", note, **rest) for note, rest in _SETTINGS.items()),
    _loss("SoftmaxCrossEntropyLoss", "log_prob used", _X, _LABELS, weight=True, outputs=2),
    Case(
        "SoftmaxCrossEntropyLoss",
        lambda op, x, labels: op.SoftmaxCrossEntropyLoss(x, labels, outputs=2)[1],
        {"x": _X, "labels": _LABELS},
        "only log_prob used",
    ),
]
