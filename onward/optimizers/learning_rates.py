"""Learning rates of the optimizer and of groups, which keep their ratio to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def rate_ratio(lr: float, own: float) -> float | None:
    """A group's learning rate divided by the optimizer's own.

    None if the own rate is 0: the group's rate is then constant.

    >>> rate_ratio(0.5, 2.0), rate_ratio(0.5, 0.0), rate_ratio(0.0, 0.0)
    (0.25, None, 1.0)
    """
    if lr == own:
        return 1.0
    ratio = lr / own if own else math.inf
    return ratio if math.isfinite(ratio) else None


class LearningRates:
    """The optimizer's own rate, and the rate of each update graph.

    Ratios are those of the first rates, so that they stay the same after an own rate of 0.

    >>> rates = LearningRates(0.5, [0.125, 0.5])
    >>> rates.set(2.0)
    >>> rates.own, rates.updates
    (2.0, [0.5, 2.0])
    """

    def __init__(self, own: float, updates: Sequence[float]) -> None:
        self._first = own, list(updates)
        self.own, self.updates = own, list(updates)

    def set(self, own: float) -> None:
        """Set the optimizer's own rate."""
        first, updates = self._first
        self.own = own
        self.updates = [_scaled(rate, first, own) for rate in updates]

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        own, updates = self._first
        return {
            "learning_rate": self.own,
            "learning_rates": list(self.updates),
            "initial_learning_rates": [own, *updates],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        updates = [float(rate) for rate in state["learning_rates"]]
        if "initial_learning_rates" not in state:  # version 0.1 saved only the rates of updates
            self._first = self._own_of(updates), updates
            self.own, self.updates = self._first[0], list(updates)
            return
        own, *first = (float(rate) for rate in state["initial_learning_rates"])
        self._first = own, first
        self.own, self.updates = float(state["learning_rate"]), updates

    def _own_of(self, updates: Sequence[float]) -> float:
        """The own rate for these rates of updates, from that of the last update."""
        own, first = self._first
        return own * updates[-1] / first[-1] if first[-1] else updates[-1]


def is_state(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's entry is a valid state for `LearningRates.restore`.

    >>> is_state(LearningRates(0.5, [0.125, 0.5]).state()), is_state({"learning_rates": ["a"]})
    (True, False)
    """
    updates, first = state.get("learning_rates"), state.get("initial_learning_rates")
    if not _are_numbers(updates) or not updates:
        return False
    if first is None:
        return True
    return (
        _are_numbers(first)
        and _are_numbers([state.get("learning_rate")])
        and len(first) == len(updates) + 1
    )


def _are_numbers(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(each, (int, float)) for each in given)


def _scaled(rate: float, first: float, own: float) -> float:
    """A group's rate after the own rate changed from `first` to `own`."""
    ratio = rate_ratio(rate, first)
    return rate if ratio is None or own == first else own * ratio
