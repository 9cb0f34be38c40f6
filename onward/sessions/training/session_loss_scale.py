"""The loss scale of a session: constant or dynamic."""

from __future__ import annotations

import numpy as np

from onward.optimizers.loss_scaling import DynamicLossScale
from onward.settings import FLOAT32_SMALLEST


class LossScale:
    """The factor of the loss before the backward pass, which keeps gradients in range."""

    def __init__(self, given: float | DynamicLossScale | None) -> None:
        self._rule = given if isinstance(given, DynamicLossScale) else None
        self._state: dict[str, float | int] = {}
        self.value = 1.0
        if isinstance(given, DynamicLossScale):
            self.restore(given.start())
        elif given is not None:
            self.value = float(np.float32(given))

    @property
    def is_dynamic(self) -> bool:
        return self._rule is not None

    def update(self, finite: bool) -> None:
        """Adjust a dynamic scale after an update, or after a skipped one."""
        if self._rule is not None:
            state = self._rule.update(self._state, finite=finite)
            state["scale"] = max(state["scale"], FLOAT32_SMALLEST)  # gradients are divided by it
            self.restore(state)

    def state(self) -> dict[str, float | int]:
        return dict(self._state)

    def restore(self, state: dict[str, float | int]) -> None:
        """Continue from a state; an empty one, of a constant scale, changes nothing."""
        if self._rule is not None and state:
            self._state = dict(state)
            self.value = float(np.float32(state["scale"]))
