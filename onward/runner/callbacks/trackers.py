"""Trackers: report a run to MLflow, Weights & Biases (wandb) or trackio, where it is installed.

Each is a small adapter over one protocol; `TrackRun` calls it while the loop runs. A resumed run
continues the run of the tracker, whose id is kept in the checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from onward.errors import OptionError, PackageMissing
from onward.message_text import suggest_names
from onward.runner.callbacks.logged_steps import LoggedSteps
from onward.runner.callbacks.tensorboard_summaries import plain_settings
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import INTERRUPTED, Run

PROJECT = "onward"
Status = Literal["finished", "interrupted"]


class Tracker(Protocol):
    """A service that keeps the numbers of runs."""

    def start(self, name: str, config: Mapping[str, Any], resume: str | None) -> str:
        """Begin a run, or continue the one with the id `resume`; return its id."""
        ...

    def log(self, numbers: Mapping[str, float], step: int) -> None: ...

    def file(self, path: Path) -> None:
        """Keep a file with the run."""
        ...

    def finish(self, status: Status) -> None: ...


class TrackRun(LoggedSteps):
    """Reports to a tracker every `log_every` steps, at each evaluation, and at the end."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._id: str | None = None

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        settings = plain_settings(run.config.model_dump())
        resume = self._id if run.step else None
        self._id = self._tracker.start(run.folder.name, settings, resume)

    def log_step(self, run: Run, step: StepRecord, numbers: Mapping[str, float]) -> None:
        finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
        self._tracker.log({**finite, "epoch": float(step.epoch)}, step.number)

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        super().on_evaluate(run, evaluation)
        self._tracker.log(evaluation.numbers, evaluation.step)

    def on_end(self, run: Run) -> None:
        for path in (run.folder.config, run.folder.metrics, run.folder.report, run.folder.model):
            if path.is_file():
                self._tracker.file(path)
        self._tracker.finish("interrupted" if run.stopped == INTERRUPTED else "finished")

    def state(self) -> dict[str, Any]:
        return {"id": self._id}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._id = state.get("id")


class MlflowTracker:
    """MLflow: runs of the experiment `project`."""

    def __init__(self, project: str = PROJECT) -> None:
        try:
            import mlflow
        except ImportError:
            raise _missing("mlflow") from None
        self._mlflow, self._project, self._id = mlflow, project, ""

    def start(self, name: str, config: Mapping[str, Any], resume: str | None) -> str:
        self._mlflow.set_experiment(self._project)
        if resume is None:
            self._id = str(self._mlflow.start_run(run_name=name).info.run_id)
            self._mlflow.log_params(dict(config), run_id=self._id)  # cannot be changed later
        else:
            self._id = str(self._mlflow.start_run(run_id=resume).info.run_id)
        return self._id

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(numbers), step=step, run_id=self._id)

    def file(self, path: Path) -> None:
        self._mlflow.log_artifact(str(path), run_id=self._id)

    def finish(self, status: Status) -> None:
        self._mlflow.end_run("FINISHED" if status == "finished" else "KILLED")


class WandbTracker:
    """Weights & Biases: runs of the project."""

    def __init__(self, project: str = PROJECT) -> None:
        try:
            import wandb
        except ImportError:
            raise _missing("wandb") from None
        self._wandb, self._project = wandb, project
        self._run: Any = None  # until it starts

    def start(self, name: str, config: Mapping[str, Any], resume: str | None) -> str:
        known = {} if resume is None else {"id": resume, "resume": "allow"}
        self._run = self._wandb.init(project=self._project, name=name, config=dict(config), **known)
        return str(self._run.id)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def file(self, path: Path) -> None:
        self._run.save(str(path), base_path=str(path.parent), policy="now")

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


class TrackioTracker:
    """trackio: runs of the project, kept on this machine; a run's id is its name."""

    def __init__(self, project: str = PROJECT) -> None:
        try:
            import trackio
        except ImportError:
            raise _missing("trackio") from None
        self._trackio, self._project = trackio, project
        self._run: Any = None  # until it starts

    def start(self, name: str, config: Mapping[str, Any], resume: str | None) -> str:
        self._run = self._trackio.init(
            project=self._project,
            name=resume or name,
            config=dict(config),
            resume="never" if resume is None else "allow",
            embed=False,
        )
        return str(self._run.name)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log(dict(numbers), step=step)

    def file(self, path: Path) -> None:
        self._trackio.save(str(path), project=self._project)

    def finish(self, status: Status) -> None:
        self._run.finish()


TRACKERS: dict[str, Callable[[str], Tracker]] = {
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
}


def track(name: str, project: str = PROJECT) -> TrackRun:
    """The callback that reports to a tracker: "mlflow", "wandb" or "trackio"."""
    if name not in TRACKERS:
        raise OptionError(f"there is no tracker {name!r}\n{suggest_names(name, TRACKERS)}")
    return TrackRun(TRACKERS[name](project))


def _missing(package: str) -> PackageMissing:
    return PackageMissing(
        f"the package {package}, which the run reports to, is not installed\n"
        f"install it with: pip install {package}"
    )
