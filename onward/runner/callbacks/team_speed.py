"""TeamSpeed: the processes of a run in run.json: how many, how they talk, how fast they are."""

from __future__ import annotations

from onward.runner.callback import Callback
from onward.runner.events import StepRecord
from onward.runner.run import Run
from onward.sessions.training.session import TrainingSession

KEY = "processes"  # in run.json


class TeamSpeed(Callback):
    """Counts the rows of all processes, and the bytes that this one sends, in this part of a run.

    {"count": 2, "backend": "gloo", "bytes_sent_per_step": 5120, "rows_per_second": 910.5}
    """

    def __init__(self) -> None:
        self._rows = self._steps = self._sent = 0
        self._seen = 0  # bytes that were counted already, of this session:
        self._session: TrainingSession | None = None
        self._began = 0.0

    def on_start(self, run: Run) -> None:
        self._steps = self._sent = 0
        self._rows, self._began = run.rows, run.clock()
        self._count_bytes(run)
        run.folder.write_record(**{KEY: {"count": run.team.size, "backend": run.team.backend}})

    def on_step(self, run: Run, step: StepRecord) -> None:
        self._steps += 1
        self._count_bytes(run)

    def on_end(self, run: Run) -> None:
        seconds = run.clock() - self._began
        found = {
            "count": run.team.size,
            "backend": run.team.backend,
            "bytes_sent_per_step": self._sent // max(self._steps, 1),
            "rows_per_second": round((run.rows - self._rows) / seconds, 3) if seconds > 0 else None,
        }
        run.folder.write_record(**{KEY: found})

    def _count_bytes(self, run: Run) -> None:
        sent = run.session.bytes_sent + run.team.bytes_sent
        if run.session is self._session:
            self._sent += sent - self._seen
        self._session, self._seen = run.session, sent  # unfreezing opens others
