"""RunRecord: run.json, which says what a run is, where it is and how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onward.measure.machine import machine, versions
from onward.runner.callback import Callback
from onward.runner.events import Evaluation
from onward.runner.run import Run
from onward.runner.run_process import this_process

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "interrupted", "failed"


def now() -> str:
    """The time in ISO 8601, to the second."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()


class RunRecord(Callback):
    """Keeps run.json up to date: at the start, at evaluations and checkpoints, and at the end."""

    def __init__(self, time: Callable[[], str] = now) -> None:
        self._time = time

    def on_start(self, run: Run) -> None:
        known = run.folder.read_record()
        run.folder.write_record(
            name=run.folder.name,
            status=RUNNING,
            started=known.get("started") or self._time(),
            finished=None,
            terminated=None,
            error=None,
            **this_process(),
            versions=versions(),
            machine=machine(),
            monitor=run.plan.monitor,
            higher_is_better=run.plan.higher_is_better,
            providers=run.session.get_providers(),
            **_position(run),
        )

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        run.folder.write_record(**_position(run))

    def on_checkpoint(self, run: Run, path: Path) -> None:
        run.folder.write_record(**_position(run))

    def on_end(self, run: Run) -> None:
        status = STOPPED if run.is_interrupted else FAILED if run.error else FINISHED
        run.folder.write_record(
            status=status,
            finished=self._time(),
            terminated=run.is_terminated or None,
            error=None if run.error is None else str(run.error),
            **_position(run),
        )


def _position(run: Run) -> dict[str, Any]:
    best, last = run.best, run.evaluations[-1] if run.evaluations else None
    return {
        "step": run.step,
        "steps": run.plan.steps,
        "epoch": run.epoch,
        "epochs": run.plan.epochs,
        "seconds": round(run.seconds, 3),
        "stopped": run.stopped,
        "best": _numbers(best),
        "last": _numbers(last),
    }


def _numbers(evaluation: Evaluation | None) -> dict[str, float | None] | None:
    """The numbers of an evaluation; JSON has no NaN."""
    if evaluation is None:
        return None
    found = evaluation.numbers.items()
    finite = {name: number if math.isfinite(number) else None for name, number in found}
    return {"step": evaluation.step, **finite}
