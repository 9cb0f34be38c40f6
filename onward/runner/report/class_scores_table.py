"""Precision, recall and F1 of each class, from the counts of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def score_classes(confusion: ArrayLike, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each class; None where a number is not defined: no row of it, or no answer.

    precision = right / answers, recall = right / rows, f1 = 2 right / (answers + rows)

    >>> [cat, dog] = score_classes([[8, 2], [0, 10]], ["cat", "dog"])
    >>> cat["precision"], cat["recall"], cat["taken_for"], dog["recall"]
    (1.0, 0.8, 'dog', 1.0)
    """
    counts = np.asarray(confusion, np.float64)
    right, rows, answers = counts.diagonal(), counts.sum(1), counts.sum(0)
    wrong = counts - np.diag(right)
    return [
        {
            "name": name,
            "count": float(rows[i]),
            "precision": _ratio(right[i], answers[i]),
            "recall": _ratio(right[i], rows[i]),
            "f1": _ratio(2 * right[i], answers[i] + rows[i]),
            "taken_for": names[int(wrong[i].argmax())] if wrong[i].any() else None,
        }
        for i, name in enumerate(names)
    ]


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
