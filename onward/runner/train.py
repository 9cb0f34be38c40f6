"""onward.train: a model and data become a folder with the trained model and all about the run."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.configs.check_settings import changed_settings
from onward.errors import OptionError, PeerFailed, RunFenced, WriteFailed
from onward.graph.files import Source
from onward.graph.paths import writing
from onward.lazy import LazyModule
from onward.runner.automatic import AUTO, AUTOMATIC, resolve_automatic
from onward.runner.callback import Callback
from onward.runner.callbacks.choose_callbacks import choose_callbacks
from onward.runner.callbacks.run_record import FAILED, STOPPED, now
from onward.runner.config import TEAM_SETTINGS, TrainConfig, check_sharding, make_config
from onward.runner.config_files import config_to_toml
from onward.runner.data.memory_sources import check_is_data, read_once
from onward.runner.interrupts import stop_on_signals
from onward.runner.loop import train_loop
from onward.runner.open_session import open_session
from onward.runner.plan.data_digests import with_digests
from onward.runner.plan.make_plan import make_plan
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run import Run
from onward.runner.run_checkpoints import begin_save, end_save, open_checkpoints, resume_run
from onward.runner.run_folder import RunFolder, find_run, new_run_folder
from onward.runner.run_process import living_process
from onward.runner.same_run import (
    check_same_settings,
    find_run_of_launch,
    find_same_run,
    is_changed,
)
from onward.runner.share_plan import parallel_settings, share_plan
from onward.runner.team import ALONE, Team, ending_together, run_on_all, run_on_first

# A higher layer, only for several processes: docs/design/0013-layers.md, "Front doors"
_distribution = LazyModule("onward.distributed.join_team")

RESOLVED = "resolved"  # in run.json: what was found for settings that were "auto"


@dataclass(frozen=True)
class FinishedRun:
    """What a run left behind."""

    folder: RunFolder
    steps: int
    metrics: dict[str, float]  # of the best evaluation: val_loss, val_accuracy, ...
    stopped: str  # why it ended before its last step; empty: it did not
    seconds: float
    processes: int = 1

    @property
    def model(self) -> Path:
        """The exported model."""
        return self.folder.model


def train(
    model: Source | None = None,
    data: Any = None,
    *,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    resume: bool = False,
    parallel: Any = "auto",
    command: str = "",
    **settings: Any,
) -> FinishedRun:
    """Train a model on data; `settings` are those of TrainConfig.

    `data` and `validation` are anything that `open_data` opens: paths, a pair of arrays (x, y),
    tables, rows, a dataset or a DataLoader of torch. With `resume`, the newest run with
    the same settings (or the run called `name`) continues where it was, bit for bit; with more
    `epochs`, a finished one trains on. `command` is written into the run's folder, as what repeats
    it.

    A process that a launcher (torchrun, mpirun, srun, `onward launch`) started with others trains
    with them: each takes its part of every batch, and process 0 writes the folder. `parallel` is a
    Parallel that says how, "auto" the one that the settings describe, None: this process trains
    by itself. The result is the same on all processes.

        run = onward.train("cnn.onnx", "digits.npz", target="label", epochs=5)
        run.metrics["val_accuracy"], run.model
    """
    for name, each in (("model", model), ("data", data), ("validation", validation)):
        check_is_data(name, each)
    data, validation = read_once(data), read_once(validation)
    given = {} if parallel in (None, AUTO) else parallel_settings(parallel)
    config = make_config(given, settings, _paths(model, data, validation))
    source: Any = model if model is not None else config.model
    if source is None:
        raise OptionError("there is no model to train\ngive one: model='model.onnx'")
    if parallel in (None, AUTO):
        check_sharding(config)
    team = ALONE
    if parallel is not None:
        chosen = None if parallel == AUTO else parallel
        team = _distribution.join_team(config.model_dump(include=set(TEAM_SETTINGS)), chosen)
    with ending_together(team):
        return _train(config, (source, data, validation), callbacks, resume, command, team)


def _train(
    config: TrainConfig,
    sources: tuple[Any, Any, Any],
    callbacks: Sequence[Callback],
    resume: bool,
    command: str,
    team: Team,
) -> FinishedRun:
    """Train in this process of a team; `sources` are the model, the data, the validation data."""
    folder = run_on_first(team, lambda: _find_folder(config, resume, team))
    is_new = folder is None
    resolved = run_on_first(team, lambda: _resolve(config, folder, sources))
    plan = run_on_all(team, lambda: with_digests(make_plan(resolved, *sources)))
    plan = share_plan(plan, team)
    everyone = run_on_all(team, lambda: choose_callbacks(resolved, plan, callbacks, team))
    if folder is None:
        folder = run_on_first(
            team, lambda: _make_folder(config, resolved, sources[0], command, team)
        )
    try:
        run = _open_run(resolved, plan, folder, everyone, not is_new, team)
    except BaseException:
        if is_new and team.rank == 0:
            folder.remove()
        raise
    if not is_new and team.rank == 0 and is_changed(folder, config):
        _write_settings(config, resolved, folder, command)
    with stop_on_signals(run):
        try:
            train_loop(run, everyone)
        except BaseException as error:
            if run.is_first and is_new and run.step == 0:
                folder.remove()  # nothing was trained: it would only be in the way
            else:
                _save_failed(run, everyone, error)
            raise
        finally:
            run.session.close()
    if run.error is not None:
        raise run.error if run.is_first else PeerFailed(str(run.error))
    metrics = {} if run.best is None else dict(run.best.numbers)
    return FinishedRun(folder, run.step, metrics, run.stopped, run.seconds, team.size)


def _open_run(
    config: TrainConfig,
    plan: TrainingPlan,
    folder: RunFolder,
    callbacks: Sequence[Callback],
    resume: bool,
    team: Team,
) -> Run:
    """The run before its next step: its first one, or the one after its newest checkpoint."""
    checkpoints = open_checkpoints(folder, plan, config.keep, team)
    found = checkpoints.latest() if resume else None
    step = 0 if found is None else found.step or 0
    session = open_session(plan, config, step, team=team)
    run = Run(config, plan, session, folder, checkpoints, team)
    if found is not None:
        resume_run(run, found, callbacks)
    return run


def _save_failed(run: Run, callbacks: Sequence[Callback], error: BaseException) -> None:
    """Keep what was trained until an error, and write the error into run.json."""
    if isinstance(error, RunFenced):
        return  # the folder is that of other processes now
    interrupted = isinstance(error, KeyboardInterrupt)
    # a second Ctrl-C may come within a step: its weights have no position
    if not interrupted and run.team.size == 1:
        begin_save(run, callbacks)
        end_save(run, callbacks)
    if not run.is_first:
        return
    status = STOPPED if interrupted else FAILED
    reason = None if interrupted else str(error) or type(error).__name__
    with contextlib.suppress(WriteFailed):  # the disk may be full: the error itself matters more
        run.folder.write_record(status=status, finished=now(), error=reason)


def _paths(model: Any, data: Any, validation: Any) -> dict[str, Any]:
    """The settings that are paths; what is in memory is not written to files."""
    found: dict[str, Any] = {}
    for name, given in (("model", model), ("data", data), ("validation", validation)):
        if isinstance(given, (str, os.PathLike)):
            found[name] = os.fspath(given)
        elif name == "data" and isinstance(given, list) and all(map(_is_path, given)):
            found[name] = [os.fspath(each) for each in given]
    return found


def _is_path(given: Any) -> bool:
    return isinstance(given, (str, os.PathLike))


def _stem(source: Any) -> str:
    return Path(source).stem if _is_path(source) else "run"


def _find_folder(config: TrainConfig, resume: bool, team: Team) -> RunFolder | None:
    """The run to resume; None: a new one. Processes that were started again resume theirs."""
    if not resume:
        return find_run_of_launch(Path(config.runs), config, team.launch, team.restarts)
    runs = Path(config.runs)
    found = find_run(runs, config.name) if config.name else find_same_run(runs, config)
    if process := living_process(found.read_record()):
        raise OptionError(
            f"{found.path} is being trained by process {process}\nwait for it, or stop it first"
        )
    return found


def _resolve(
    config: TrainConfig, folder: RunFolder | None, sources: tuple[Any, Any, Any]
) -> TrainConfig:
    """The config with numbers for "auto": those of the run that is resumed, or measured."""
    known = {} if folder is None else folder.read_record().get(RESOLVED, {})
    resolved = resolve_automatic(config, known, *sources)
    if folder is not None:
        check_same_settings(folder, resolved)
    return resolved


def _make_folder(
    config: TrainConfig, resolved: TrainConfig, source: Any, command: str, team: Team
) -> RunFolder:
    folder = new_run_folder(Path(config.runs), config.name, _stem(source))
    _write_settings(config, resolved, folder, command)
    if team.launch is not None:
        folder.write_record(launch=team.launch)
    return folder


def _write_settings(
    config: TrainConfig, resolved: TrainConfig, folder: RunFolder, command: str
) -> None:
    """config.toml, command.txt and the first entries of run.json."""
    repeat = command or f"onward train --config {shlex.quote(str(folder.config))}"
    with writing(folder.config):
        folder.config.write_text(config_to_toml(config))
        folder.command.write_text(f"{repeat}\n")
    settings = changed_settings(resolved)
    automatic = {name: getattr(resolved, name) for name in AUTOMATIC}
    folder.write_record(command=repeat, config=settings, **{RESOLVED: automatic})
