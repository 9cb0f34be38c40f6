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
from onward.errors import OptionError, WriteFailed
from onward.graph.files import Source
from onward.graph.paths import writing
from onward.runner.automatic import AUTOMATIC, resolve_automatic
from onward.runner.callback import Callback
from onward.runner.callbacks.choose_callbacks import choose_callbacks
from onward.runner.callbacks.run_record import FAILED, STOPPED, now
from onward.runner.config import TrainConfig, make_config
from onward.runner.config_files import config_to_toml
from onward.runner.interrupts import stop_on_signals
from onward.runner.loop import train_loop
from onward.runner.open_session import open_session
from onward.runner.plan.make_plan import make_plan
from onward.runner.plan.training_plan import TrainingPlan
from onward.runner.run import Run
from onward.runner.run_checkpoints import open_checkpoints, resume_run, save_checkpoint
from onward.runner.run_folder import RunFolder, find_run, new_run_folder
from onward.runner.run_process import living_process
from onward.runner.same_run import find_same_run

RESOLVED = "resolved"  # in run.json: what was found for settings that were "auto"


@dataclass(frozen=True)
class FinishedRun:
    """What a run left behind."""

    folder: RunFolder
    steps: int
    metrics: dict[str, float]  # of the best evaluation: val_loss, val_accuracy, ...
    stopped: str  # why it ended before its last step; empty: it did not
    seconds: float

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
    command: str = "",
    **settings: Any,
) -> FinishedRun:
    """Train a model on data; `settings` are those of TrainConfig.

    `data` and `validation` are anything that `open_data` opens. With `resume`, the newest run with
    the same settings (or the run called `name`) continues where it was, bit for bit. `command` is
    written into the run's folder, as what repeats it.

        run = onward.train("cnn.onnx", "digits.npz", target="label", epochs=5)
        run.metrics["val_accuracy"], run.model
    """
    config = make_config(settings, _paths(model, data, validation))
    source: Any = model if model is not None else config.model
    if source is None:
        raise OptionError("there is no model to train\ngive one: model='model.onnx'")
    folder = _find_run(config) if resume else None
    is_new = folder is None
    known = {} if folder is None else folder.read_record().get(RESOLVED, {})
    resolved = resolve_automatic(config, known, source, data, validation)
    plan = make_plan(resolved, source, data, validation)
    everyone = choose_callbacks(resolved, plan, callbacks)
    if folder is None:
        folder = new_run_folder(Path(config.runs), config.name, _stem(source))
        _write_settings(config, resolved, folder, command)
    try:
        run = _open_run(resolved, plan, folder, everyone, resume)
    except BaseException:
        if is_new:
            folder.remove()
        raise
    with stop_on_signals(run):
        try:
            train_loop(run, everyone)
        except BaseException as error:
            if is_new and run.step == 0:
                folder.remove()  # nothing was trained: it would only be in the way
            else:
                _save_failed(run, everyone, error)
            raise
        finally:
            run.session.close()
    if run.error is not None:
        raise run.error
    metrics = {} if run.best is None else dict(run.best.numbers)
    return FinishedRun(folder, run.step, metrics, run.stopped, run.seconds)


def _open_run(
    config: TrainConfig,
    plan: TrainingPlan,
    folder: RunFolder,
    callbacks: Sequence[Callback],
    resume: bool,
) -> Run:
    """The run before its next step: its first one, or the one after its newest checkpoint."""
    checkpoints = open_checkpoints(folder, plan, config.keep)
    found = checkpoints.latest() if resume else None
    step = 0 if found is None else found.step or 0
    session = open_session(plan, config, step)
    run = Run(config, plan, session, folder, checkpoints)
    if found is not None:
        resume_run(run, found, callbacks)
    return run


def _save_failed(run: Run, callbacks: Sequence[Callback], error: BaseException) -> None:
    """Keep what was trained until an error, and write the error into run.json."""
    interrupted = isinstance(error, KeyboardInterrupt)
    if not interrupted:  # a second Ctrl-C may come within a step: its weights have no position
        save_checkpoint(run, callbacks)
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


def _find_run(config: TrainConfig) -> RunFolder:
    """The run to resume; not one that a process is still training."""
    runs = Path(config.runs)
    found = find_run(runs, config.name) if config.name else find_same_run(runs, config)
    if process := living_process(found.read_record()):
        raise OptionError(
            f"{found.path} is being trained by process {process}\nwait for it, or stop it first"
        )
    return found


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
