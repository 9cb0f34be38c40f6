"""NonFiniteGuard: a run whose gradients are not finite is stopped, and the first bad node named.

The session itself leaves such an update out, so the weights are still good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from onward.errors import NotFinite
from onward.optimizers.loss_scaling import DynamicLossScale
from onward.runner.callback import Callback
from onward.runner.data.batches import DataBatch
from onward.runner.events import StepRecord
from onward.runner.nonfinite import find_nonfinite, locate_nonfinite
from onward.runner.run import Run

_SCALES_TRIED = 50  # updates in a row that a loss scale may skip while it finds its size
_UNKNOWN = "gradients are not finite"


class NonFiniteGuard(Callback):
    """Stops a run at the first update that was skipped; with on_nan="skip", goes on."""

    def __init__(self) -> None:
        self._skipped = 0
        self._in_a_row = 0
        self._lookahead = 1  # steps that the engine may be ahead
        self._batches: deque[DataBatch] = deque(maxlen=1)

    def on_start(self, run: Run) -> None:
        self._skipped = run.session.skipped_steps
        self._lookahead = run.session.lookahead
        self._batches = deque(maxlen=max(self._lookahead, 1))

    def on_step(self, run: Run, step: StepRecord) -> None:
        self._batches.append(step.batch)
        if step.number % self._lookahead:
            return  # reading the flags would wait for the engine, which runs ahead
        skipped = run.session.skipped_steps
        if skipped == self._skipped:
            self._in_a_row = 0
            return
        self._in_a_row += skipped - self._skipped
        self._skipped = skipped
        scaled = isinstance(run.plan.options.loss_scale, DynamicLossScale)
        if self._in_a_row > (_SCALES_TRIED if scaled else 0) and run.config.on_nan == "stop":
            error = NotFinite(self._explain(run, step))
            run.stop(_UNKNOWN, error)

    def _explain(self, run: Run, step: StepRecord) -> str:
        where = f"step {step.number} (epoch {step.epoch + 1}, batch {run.batch})"
        kept, skip = "the weights are as before it", "leave the batch out: --on-nan skip"
        hint = f"{kept}; lower --learning-rate, or {skip}"
        # one process may have the rows that all of them skipped the step for
        found = [each for each in run.team.gather(self._find_rows(run)) if each]
        if found and found[0][1]:
            hint = f"{kept}; correct the data, or {skip}"
        return f"{where}{found[0][0] if found else f': {_UNKNOWN}'}\n{hint}"

    def _find_rows(self, run: Run) -> tuple[str, bool] | None:
        """The rows and the node of the first numbers that are not finite, and if the data has them.

        None if there are none.
        """
        if run.team.is_sharded:
            return None  # no process could read the weights by itself
        for batch in self._batches:
            found = find_nonfinite(run.session, batch.feeds) if len(batch) else None
            if found is not None:
                is_data = found.kind == "feed"
                return f", {locate_nonfinite(found, batch)}", is_data
        return None

    def state(self) -> dict[str, Any]:
        return {"in_a_row": self._in_a_row}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._in_a_row = int(state.get("in_a_row", 0))
