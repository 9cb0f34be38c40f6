"""Find the run that the same settings started before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onward.errors import OnwardError, OptionError
from onward.runner.callbacks.run_record import FINISHED, STOPPED
from onward.runner.config import TrainConfig, make_config
from onward.runner.config_files import read_config
from onward.runner.run_folder import RunFolder, list_runs
from onward.runner.run_process import living_process


def find_same_run(runs: Path, config: TrainConfig) -> RunFolder:
    """The newest run with these settings; OptionError if there is none."""
    found = next(_same_runs(runs, config), None)
    if found is None:
        raise OptionError(
            f"no run in {runs} has the same settings, so there is none to resume\n"
            "start it without --resume, or name the run: --name"
        )
    return found


def find_run_of_launch(
    runs: Path, config: TrainConfig, launch: str | None, restarts: int
) -> RunFolder | None:
    """The run that a launcher's processes were training when it started them again.

    `launch` names the launcher's job; it was started again `restarts` times. A launcher of elastic
    jobs does not count the times that a machine came or went. When a machine comes, it ends the
    processes by SIGTERM, and so does a scheduler that will run the job again; Ctrl-C is a user's.

    A process may also fail after the last step, while it ends. Then the run is complete: it is
    found if the job has a name, so that it is not trained again.
    """
    if launch is None and not restarts:
        return None
    for folder in _same_runs(runs, config):
        record = folder.read_record()
        if config.name is not None and folder.name != config.name:
            continue
        if record.get("launch") != launch or living_process(record):
            continue
        completed_before = launch is not None and restarts and record.get("status") == FINISHED
        if completed_before or not _has_ended(record):
            return folder
    return None


def _has_ended(record: Mapping[str, Any]) -> bool:
    """Whether a run is complete, or its user has stopped it."""
    status = record.get("status")
    return status == FINISHED or (status == STOPPED and not record.get("terminated"))


def _same_runs(runs: Path, config: TrainConfig) -> Iterator[RunFolder]:
    """The runs with these settings, the newest first."""
    wanted = config.model_copy(update={"name": None})
    for folder in reversed(list(list_runs(runs))):
        try:
            found = make_config(read_config(folder.config))
        except OnwardError:
            continue  # of another version, or damaged: not this one
        if found.model_copy(update={"name": None}) == wanted:
            yield folder
