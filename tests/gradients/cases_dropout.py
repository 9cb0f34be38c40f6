"""Cases of rules/dropout.py: with a seed, the mask is the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal

HALF, TRAIN, TEST = np.array(0.3), np.array(True), np.array(False)


def dropped(*more: Any, ratio: Any = HALF) -> Any:
    def write(op: Any, x: Any, **given: Any) -> Any:
        like = None if ratio is None else op.constant(np.asarray(ratio, x.dtype.numpy()))
        return op.Dropout(op.Sin(x), like, *more, *given.values(), seed=3)

    return write


def masked(op: Any, x: Any, mask: Any) -> Any:
    like = op.Sin(x)
    y = op.MaskedScale(like, mask, np.asarray(1.25, x.dtype.numpy()), domain="onward")
    y.type, y.shape = like.type, like.shape
    return y


X = {"x": normal(4, 5)}
# stock onnxruntime draws a new mask in every run: its gradient is its own, not comparable
CASES = [
    Case("Dropout", dropped(), X, "not training"),
    Case("Dropout", dropped(TEST), X, "training_mode is False"),
    Case("Dropout", dropped(TRAIN), X, "training", ort=False),
    Case("Dropout", dropped(TRAIN, ratio=None), X, "training, the default ratio", ort=False),
    Case("Dropout", dropped(), {**X, "train": TRAIN}, "training_mode is fed", ort=False),
    Case("Dropout", dropped(), {**X, "train": TEST}, "training_mode is fed as False"),
    Case("onward::MaskedScale", masked, {**X, "mask": normal(4, 5, seed=1) > 0}),
]
