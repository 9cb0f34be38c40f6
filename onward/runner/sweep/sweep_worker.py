"""The child process of a sweep: runs the trials that its parent sends, one after another."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onward.runner.sweep.study_journal import import_optuna, open_study, quiet_optuna
from onward.runner.sweep.sweep_trial import PruneTrial, StopWhenAsked, find_run_trial
from onward.workers.serve import Request, serve


def run_request(request: Request) -> tuple[dict[str, Any], list[Any]]:
    """Run one trial; evaluations go to the study's journal, the result to the parent."""
    header = request.header
    stopping = threading.Event()
    request.on_interrupt(stopping.set)
    with quiet_optuna():
        study = open_study(Path(header["folder"]), header["prune"])
        trial = import_optuna().trial.Trial(study, header["trial"])
        run_trial = find_run_trial(header["run_trial"])
        callbacks = [PruneTrial(trial), StopWhenAsked(stopping.is_set)]
        result = run_trial(header["settings"], callbacks)
    return {"result": asdict(result)}, []


if __name__ == "__main__":
    serve({"trial": run_request})
