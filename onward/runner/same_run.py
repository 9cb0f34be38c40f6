"""Find the run that the same settings started before, and check those of a run that is resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from onward.errors import OnwardError, OptionError
from onward.message_text import list_names
from onward.runner.callbacks.run_record import FINISHED, STOPPED
from onward.runner.config import TEAM_SETTINGS, TrainConfig, make_config
from onward.runner.config_files import read_config
from onward.runner.run_folder import RunFolder, list_runs
from onward.runner.run_process import living_process

# settings of how long a run is, of what is done around its steps, and of the machine; most others
# would move its position in the data, or change what is trained
_MAY_CHANGE = (
    "epochs", "max_steps", "patience", "evaluate_every", "save_every", "keep", "log_every",
    "sample_text", "tensorboard", "track", "profile", "on_nan", "export", "keep_adapter",
    "provider", "threads", "data_threads", "memory_budget", "memory_level", "runs", "name",
    *TEAM_SETTINGS,
)  # fmt: skip
_LOWERED = ("learning_rate", "max_grad_norm")  # after a divergence, in a run that is named
_PATHS = ("model", "data", "validation")  # of files that may have been moved


def find_same_run(runs: Path, config: TrainConfig) -> RunFolder:
    """The newest run with these settings, else one that they make longer; OptionError if none."""
    found = next(_same_runs(runs, config), None) or next(
        _same_runs(runs, config, _MAY_CHANGE), None
    )
    if found is None:
        raise OptionError(
            f"no run in {runs} has the same settings, so there is none to resume\n"
            f"start it without --resume, or name the run: --name{_nearest(runs, config)}"
        )
    return found


def _nearest(runs: Path, config: TrainConfig) -> str:
    """What the newest run has that differs, as the end of a message."""
    for folder in reversed(list(list_runs(runs))):
        with contextlib.suppress(OnwardError):
            found = make_config(read_config(folder.config))
            names = _different(found, config, _MAY_CHANGE)
            return f" ({folder.name} differs in {list_names(names)})"
    return ""


def check_same_settings(folder: RunFolder, config: TrainConfig) -> None:
    """Refuse settings that cannot change while a run is resumed; `config` has no "auto"."""
    try:
        before = make_config(folder.read_record().get("config", {}))
    except OnwardError:
        return  # of another version
    for name in _different(before, config, (*_MAY_CHANGE, *_LOWERED, *_PATHS)):
        raise OptionError(
            f"{name} cannot change in a run that is resumed: {folder.path} was started with "
            f"{_shown(before, name)}, not {_shown(config, name)}\n"
            f"give it the settings of {folder.config}, or train its model in a new run: "
            f"onward train {folder.model}"
        )


def is_changed(folder: RunFolder, config: TrainConfig) -> bool:
    """Whether a run's settings are others than those in its config.toml."""
    try:
        return bool(_different(make_config(read_config(folder.config)), config, ("name", "runs")))
    except OnwardError:
        return True


def _different(a: TrainConfig, b: TrainConfig, without: Collection[str]) -> list[str]:
    """The names of the settings that are different, of those that count."""
    names = (name for name in TrainConfig.model_fields if name not in without)
    return [name for name in names if getattr(a, name) != getattr(b, name)]


def _shown(config: TrainConfig, name: str) -> str:
    """A setting as a message shows it: its value, or that there is none."""
    value = getattr(config, name)
    return "none" if value is None or value in ([], {}) else repr(value)


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


def _same_runs(
    runs: Path, config: TrainConfig, without: Collection[str] = ("name",)
) -> Iterator[RunFolder]:
    """The runs with these settings, but for those `without`, the newest first."""
    for folder in reversed(list(list_runs(runs))):
        try:
            found = make_config(read_config(folder.config))
        except OnwardError:
            continue  # of another version, or damaged: not this one
        if not _different(found, config, without):
            yield folder
