"""The loss scale of a session: constant or dynamic, updated here or by the engine."""

from __future__ import annotations

import numpy as np

from onward.optimizers.loss_scaling import DynamicLossScale
from onward.providers.provider import Flag, ScalingTraining, TrainingExecutable
from onward.settings import FLOAT32_SMALLEST


class LossScale:
    """The factor of the loss before the backward pass, which keeps gradients in range.

    An engine that can, keeps a dynamic scale on its device (`move_to`): no step waits for it, and
    the properties of this class read it.
    """

    def __init__(self, given: float | DynamicLossScale | None) -> None:
        self._rule = given if isinstance(given, DynamicLossScale) else None
        self._state: dict[str, float | int] = {}
        self._constant = 1.0
        self._keeper: ScalingTraining | None = None
        if isinstance(given, DynamicLossScale):
            self._state = given.start()
        elif given is not None:
            self._constant = float(np.float32(given))

    def move_to(self, engine: TrainingExecutable | None) -> None:
        """Let an engine keep a dynamic scale from now on, if it can; None: no engine does."""
        self._state = self.state()
        self._keeper = None
        if self._rule is not None and isinstance(engine, ScalingTraining):
            self._keeper = engine
        self.restore(self._state)

    @property
    def value(self) -> float:
        """The scale of the next step; waits for an engine that keeps it."""
        state = self.state()
        return float(np.float32(state["scale"])) if state else self._constant

    @property
    def for_engine(self) -> float:
        """The scale to pass to an engine, without waiting; one that keeps the scale ignores it."""
        return self._constant if self._keeper is not None else self.value

    def update(self, finite: Flag) -> None:
        """Adjust a dynamic scale after an update, or after a skipped one."""
        if self._rule is not None and self._keeper is None:
            least = FLOAT32_SMALLEST  # gradients are divided by it
            self._state = self._rule.update(self._state, finite=bool(finite), least=least)

    def state(self) -> dict[str, float | int]:
        """The state of a dynamic scale; empty for a constant one."""
        return dict(self._state) if self._keeper is None else self._keeper.scale_state()

    def restore(self, state: dict[str, float | int]) -> None:
        """Continue from a state; an empty one, of a constant scale, changes nothing."""
        if self._rule is None or not state:
            return
        self._state = dict(state)
        if self._keeper is not None:
            self._keeper.keep_scale(self._rule, self._state)
