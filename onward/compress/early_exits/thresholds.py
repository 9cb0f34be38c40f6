"""Choose the threshold of each exit, on rows that no head was trained on.

A row is lost if the network answers it correctly and the exit that it takes does not. All exits
take the same risk: among the rows that are sure enough for an exit, the same share may be lost.
The risk is the one that saves the most with no more lost rows than the budget allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onward.compress.calibration import Array

NEVER = 2.0  # a threshold above every confidence
_RISKS = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 120)])


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds and what they lead to on the held-out rows.

    Attributes:
        values: one for each exit
        taken: the exit of each row; the number of exits: none
        lost: the share of lost rows
        cost: the mean cost of a row, as a share of the whole network's
    """

    values: list[float]
    taken: Array
    lost: float
    cost: float


def choose_thresholds(
    confidences: Sequence[Array],
    right: Sequence[Array],
    final_right: Array,
    costs: Sequence[float],
    drop: float,
) -> Thresholds:
    """The thresholds that save the most within a budget.

    Args:
        confidences: of each exit, for each row
        right: whether each exit is right, for each row
        final_right: whether the network is right, for each row
        costs: of a row that leaves at each exit, as a share of the whole network's
        drop: the share of rows that may be lost
    """
    lost = [final_right & ~each for each in right]
    best = apply_thresholds([NEVER] * len(costs), confidences, lost, costs)
    for risk in _RISKS:
        values = [_lowest(c, x, risk) for c, x in zip(confidences, lost, strict=True)]
        found = apply_thresholds(values, confidences, lost, costs)
        if found.lost <= drop + 1e-12 and found.cost < best.cost:
            best = found
    return best


def apply_thresholds(
    values: Sequence[float],
    confidences: Sequence[Array],
    lost: Sequence[Array],
    costs: Sequence[float],
) -> Thresholds:
    """What thresholds lead to."""
    rows, last = len(confidences[0]), len(values)
    taken = np.full(rows, last)
    for number in reversed(range(last)):
        taken[confidences[number] >= values[number]] = number
    gone = sum(int(lost[number][taken == number].sum()) for number in range(last))
    cost = float(np.mean(np.array([*costs, 1.0])[taken]))
    return Thresholds(values=list(values), taken=taken, lost=gone / rows, cost=cost)


def _lowest(confidence: Array, lost: Array, risk: float) -> float:
    """The lowest threshold with at most this share of lost rows among those above it."""
    order = np.argsort(-confidence, kind="stable")
    sure = confidence[order]
    share = np.cumsum(lost[order]) / np.arange(1, len(order) + 1)
    is_end = np.append(sure[1:] < sure[:-1], True)  # equal confidences leave together
    allowed = np.flatnonzero((share <= risk) & is_end)
    if not len(allowed):
        return NEVER
    last = int(allowed[-1])
    if last + 1 == len(sure):
        return float(sure[last])
    return float((np.float64(sure[last]) + sure[last + 1]) / 2)
