"""Progress: the numbers of updates made and skipped, and the learning rates of the next ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from onward.errors import OptionError
from onward.optimizers.learning_rates import LearningRates
from onward.programs.program import Layout
from onward.providers.provider import Flag
from onward.settings import finite_number

NOT_FINITE = "step %d: gradients are not finite, no update"  # the warning of a skipped step

log = logging.getLogger("onward")


class Progress:
    """Counts updates when their flags become known: an engine may run ahead."""

    def __init__(self, layout: Layout) -> None:
        settings = layout.settings
        self._skips, self._schedule = settings.skip_nonfinite, settings.schedule
        rates = [update.learning_rate for update in layout.updates]
        self._rates = LearningRates(settings.learning_rate, rates)
        self._steps, self._skipped = 0, 0
        self._pending: list[Flag] = []

    @property
    def steps(self) -> int:
        """The number of updates; waits for those that an engine is still computing."""
        if self._pending:  # asked several times in a step: a call costs time, even of nothing
            self.read_flags()
        return self._steps

    @property
    def skipped(self) -> int:
        """The number of updates that were skipped because gradients were not finite."""
        if self._pending:
            self.read_flags()
        return self._skipped

    @property
    def started(self) -> int:
        """The number of updates that were started; waits for nothing."""
        return self._steps + self._skipped + len(self._pending)

    def record(self, finite: Flag) -> None:
        """Count an update; `finite`: whether its gradients are, which is read later."""
        self._pending.append(finite)

    @property
    def pending(self) -> int:
        """The number of updates whose flags have not been read."""
        return len(self._pending)

    def read_flags(self) -> None:
        """Read all pending flags."""
        pending, self._pending = self._pending, []
        for finite in pending:
            if bool(finite) or not self._skips:
                self._steps += 1
            else:
                self._skipped += 1
                log.warning(NOT_FINITE, self._steps)

    # -- learning rates ------------------------------------------------------------------------

    def rates_ahead(self, count: int) -> list[list[float]]:
        """For each update graph, the learning rates of the next updates."""
        if self._schedule is None:
            return [[rate] * count for rate in self._rates.updates]
        first = self.steps
        steps = range(first, first + count)
        return [[self._scheduled(rate, step) for step in steps] for rate in self._rates.updates]

    @property
    def learning_rate(self) -> float:
        """The optimizer's own at this step."""
        return self._scheduled(self._rates.own, self.steps)

    @property
    def expected_rate(self) -> float:
        """The optimizer's own at the next update, if no pending one is skipped; waits for none."""
        return self._scheduled(self._rates.own, self._steps + len(self._pending))

    def _scheduled(self, rate: float, step: int) -> float:
        return rate if self._schedule is None else self._schedule.rate(step, rate)

    def set_learning_rate(self, rate: float) -> None:
        number = finite_number(rate)
        if number is None or number < 0:
            raise OptionError(
                f"a learning rate must be a number, 0 or more, not {rate!r}\n"
                "give one, such as 0.001"
            )
        self._rates.set(number)

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "skipped": self.skipped, **self._rates.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._pending = []
        self._steps, self._skipped = int(state["steps"]), int(state["skipped"])
        self._rates.restore(state)
