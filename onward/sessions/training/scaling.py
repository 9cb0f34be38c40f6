"""The loss scale of a session: constant, or one that adjusts itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.optimizers.checks import SMALLEST
from onward.optimizers.scaling import DynamicLossScale
from onward.sessions.training.engine import Engine
from onward.sessions.training.program import SCALE


class LossScale:
    """What the loss is multiplied by before the backward pass, so that gradients stay in range."""

    def __init__(self, given: float | dict[str, Any] | None) -> None:
        self._used = given is not None
        self._rule: DynamicLossScale | None = None
        self._state: dict[str, float | int] = {}
        self._tensor = np.ones((), np.float32)
        if isinstance(given, dict):
            self._rule = DynamicLossScale(**given)
            self.restore(self._rule.start())
        elif given is not None:
            self._tensor[...] = given

    @property
    def value(self) -> float:
        return float(self._tensor)

    def bind(self, engine: Engine) -> None:
        if self._used:
            engine.bind_input(SCALE, self._tensor)

    def update(self, finite: bool) -> None:
        """After an update, or one that was left out because gradients were not finite."""
        if self._rule is not None:
            state = self._rule.update(self._state, finite=finite)
            state["scale"] = max(state["scale"], SMALLEST)  # gradients are divided by it
            self.restore(state)

    def state(self) -> dict[str, float | int]:
        return dict(self._state)

    def restore(self, state: dict[str, float | int]) -> None:
        """Go on from a state; without one, where no scale adjusted itself, the own one stays."""
        if self._rule is not None and state:
            self._state = dict(state)
            self._tensor[...] = state["scale"]
