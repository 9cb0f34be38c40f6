"""Callbacks: what happens around the steps of a run.

The loop (`loop.py`) calls every callback in order. A callback may read everything of the run, may
ask it to stop (`run.stop(reason)`), and may keep numbers over an interruption (`state`, `restore`).

    class PrintLoss(Callback):
        def on_step(self, run, step):
            print(step.number, step.loss)

    onward.train("model.onnx", "data.csv", callbacks=[PrintLoss()])
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import Run


class Callback:
    """What happens at moments of a run; each method does nothing unless it is overridden.

    `on_step` is called at every update, or only at multiples of `steps_between`, which `on_start`
    may set.
    """

    steps_between: int = 1

    def on_start(self, run: Run) -> None:
        """Before the first step, and again when a run is resumed."""

    def on_step(self, run: Run, step: StepRecord) -> None:
        """After an update."""

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        """After an evaluation."""

    def on_epoch(self, run: Run, epoch: int) -> None:
        """After a pass over the data; `epoch` counts from 0."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After a checkpoint was written."""

    def on_end(self, run: Run) -> None:
        """After the last step, with the exported model; also where the run was interrupted."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback, as JSON."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned."""
