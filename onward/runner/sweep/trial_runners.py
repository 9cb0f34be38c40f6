"""Where the trials of a sweep run: in this process, or in worker processes side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from onward.runner.sweep.study_journal import PruneName
from onward.runner.sweep.sweep_trial import (
    PruneTrial,
    RunTrial,
    Settings,
    StopWhenAsked,
    TrialResult,
    find_run_trial,
)
from onward.workers.worker import Worker

_GRACE = 20.0  # seconds for a run to save what it has after Ctrl-C


class TrialRunner(Protocol):
    """Runs one trial at a time."""

    def run(self, trial: Any, settings: Settings) -> TrialResult: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class InProcessRunner:
    """Runs trials here: any model and data will do."""

    def __init__(self, run_trial: RunTrial | str) -> None:
        self._run_trial = find_run_trial(run_trial)
        self._stopping = threading.Event()

    def run(self, trial: Any, settings: Settings) -> TrialResult:
        callbacks = [PruneTrial(trial), StopWhenAsked(self._stopping.is_set)]
        return self._run_trial(settings, callbacks)

    def interrupt(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        pass


class WorkerRunner:
    """Runs trials in a child process; another one is started after a crash."""

    def __init__(self, run_trial: str, folder: Path, prune: PruneName, number: int) -> None:
        self._request = {
            "do": "trial",
            "run_trial": run_trial,
            "folder": str(folder.absolute()),
            "prune": prune,
        }
        self._name = f"worker {number} of the sweep"
        self._worker: Worker | None = None
        self._stopping = False

    def run(self, trial: Any, settings: Settings) -> TrialResult:
        if self._worker is None or not self._worker.alive:
            self.close()
            self._worker = Worker("onward.runner.sweep.sweep_worker", self._name)
        if self._stopping:
            raise KeyboardInterrupt
        request = {**self._request, "trial": trial._trial_id, "settings": settings}
        reply, _ = self._worker.ask(request, doing=f"ran trial {trial.number}")
        return TrialResult(**reply["result"])

    def interrupt(self) -> None:
        self._stopping = True
        if self._worker is not None:
            self._worker.interrupt(kill_after=_GRACE)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def run_side_by_side(
    runners: list[TrialRunner], work: Callable[[TrialRunner], None], stop: Callable[[], None]
) -> None:
    """Call `work` with each runner in a thread of its own; Ctrl-C stops all, then is raised."""
    errors: list[BaseException] = []

    def guarded(runner: TrialRunner) -> None:
        try:
            work(runner)
        except BaseException as error:
            errors.append(error)
            stop_all()

    def stop_all() -> None:
        stop()
        for each in runners:
            each.interrupt()

    threads = [threading.Thread(target=guarded, args=(each,), daemon=True) for each in runners]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.1)  # a wait without end would not see Ctrl-C on every system
    except KeyboardInterrupt:
        stop_all()
        for thread in threads:
            thread.join()
        raise
    if errors:
        raise errors[0]
