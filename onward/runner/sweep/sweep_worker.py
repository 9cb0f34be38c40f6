"""The child process of a sweep: runs the trials that its parent sends, one after another."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onward.runner.callback import Callback
from onward.runner.sweep.study_journal import open_study, quiet_optuna
from onward.runner.sweep.sweep_trial import PruneTrial, StopWhenAsked, find_run_trial
from onward.workers.request_loop import Request, serve


def run_request(request: Request) -> tuple[dict[str, Any], list[Any]]:
    """Run one trial; evaluations go to the study's journal, the result to the parent."""
    header = request.header
    stopping = threading.Event()
    request.on_interrupt(stopping.set)
    run_trial = find_run_trial(header["run_trial"])
    callbacks: list[Callback] = [StopWhenAsked(stopping.is_set)]
    if header["prune"] == "none":  # Optuna is not needed here
        return {"result": asdict(run_trial(header["settings"], callbacks))}, []
    with quiet_optuna() as optuna:
        study = open_study(Path(header["folder"]), header["prune"])
        callbacks.append(PruneTrial(optuna.trial.Trial(study, header["trial"])))
        return {"result": asdict(run_trial(header["settings"], callbacks))}, []


if __name__ == "__main__":
    serve({"trial": run_request})
