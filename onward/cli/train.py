"""onward train: train a model on data."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.config_flags import add_config_flags, given_settings
from onward.cli.console import make_console, print_pairs, warn
from onward.cli.training_display import TrainingDisplay
from onward.cli.watch_training import WatchFlags, check_watch, served_model, watch_training
from onward.distributed.launchers.local_processes import run_local
from onward.distributed.launchers.ranks import find_ranks
from onward.errors import OptionError, PeerFailed
from onward.formatting import show_bytes, show_seconds
from onward.runner.callback import Callback
from onward.runner.callbacks.team_speed import KEY as PROCESSES
from onward.runner.config import TEAM, TrainConfig, check_sharding, make_config
from onward.runner.config_files import config_to_toml, read_config
from onward.runner.planned_memory import plan_run_memory
from onward.runner.run import INTERRUPTED, Run
from onward.runner.train import FinishedRun
from onward.runner.train import train as train_model
from onward.runner.watch_models import HeldOutRows

_WATCH = "Continuous training"
_FAILED = 2  # as main has it for bad input


def train(
    model: Annotated[
        Path | None, typer.Argument(help="The model.", autocompletion=arguments.complete_models)
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings from a .toml or .yaml file.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run with the same settings.")
    ] = False,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print every setting as TOML, and stop.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the memory of a step, and stop.")
    ] = False,
    nproc: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes to start here.", rich_help_panel=TEAM),
    ] = None,
    max_restarts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="With --nproc: start them again so often after one failed, and resume.",
            rich_help_panel=TEAM,
        ),
    ] = 0,
    watch: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Then train on each file that appears in a folder; keep what is better.",
            rich_help_panel=_WATCH,
        ),
    ] = None,
    min_improvement: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="How much better it must be.", rich_help_panel=_WATCH),
    ] = None,
    replay: Annotated[
        int | None,
        typer.Option(metavar="N", help="Earlier files to train on again.", rich_help_panel=_WATCH),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Time between two looks, 5 by default.", rich_help_panel=_WATCH
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Process what is there, and stop.", rich_help_panel=_WATCH),
    ] = False,
    **given: Any,
) -> None:
    """Train a model on data.

    Loss, metrics and columns are worked out from the model and the data, and shown before the
    first step. Ctrl-C saves and stops; the same command with --resume continues. Processes that
    --nproc, torchrun, mpirun or srun start take a part of every batch each.

    \b
    onward train model.onnx --data data.csv --target label
    onward train model.onnx --data photos --epochs 10 --flip --patience 3
    onward train model.onnx --data new.csv --new-head 3 --freeze 'encoder.*'
    onward train --config run.toml --learning-rate 0.01 --resume
    onward train model.onnx --data base.csv --watch incoming
    onward train model.onnx --data data.csv --nproc 2
    onward train model.onnx --data data.csv --memory-budget 8GiB --plan
    """
    settings = {} if config is None else read_config(config)
    named = given_settings(given, TrainConfig)
    settings |= named
    if model is not None:
        settings["model"] = str(model)
    checked = make_config(settings)
    if show_config:
        typer.echo(config_to_toml(checked, everything=True), nl=False)
        return
    check_sharding(checked, named)  # such as --zero 3, which is the default
    if checked.model is None:
        raise OptionError("there is no model to train\ngive one: onward train model.onnx")
    flags = WatchFlags(watch, min_improvement, replay, interval, once)
    check_watch(flags, checked)
    ranks = find_ranks(os.environ)
    if watch is not None and (nproc is not None or (ranks is not None and ranks.size > 1)):
        raise OptionError("--watch trains in one process\nleave out --nproc, and the launcher")
    if nproc is not None and ranks is None:
        raise typer.Exit(_start_processes(nproc, max_restarts))
    if ranks is not None and ranks.rank:
        _train_silently(resume, settings)
        return
    console = make_console()
    if checked.data is None and watch is not None:
        watch_training(console, flags, Path(checked.model), checked.validation, settings)
        return
    if checked.data is None:
        raise OptionError("there is no data to train on\ngive it: --data data.csv")
    if plan:
        report = plan_run_memory(checked, checked.model, checked.data, checked.validation)
        typer.echo(str(report))
        return
    held_out = HeldOutRows()
    with _reported_by_one(), TrainingDisplay(console) as display:
        run = train_model(
            callbacks=[ShowChoices(console), display, held_out],
            resume=resume,
            command=_command(),
            **settings,
        )
    _show_result(console, run)
    if run.stopped == INTERRUPTED:
        raise typer.Exit(130)
    if watch is not None:
        rows = held_out.rows if checked.validation is None else checked.validation
        served = served_model(run.folder)
        watch_training(console, flags, served, rows, settings, run.folder.path / "watch")


add_config_flags(train, TrainConfig, leave_out=("model",))


class ShowChoices(Callback):
    """Prints what was worked out, before the first step."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def on_start(self, run: Run) -> None:
        pairs = [(f"  {each.what}", f"{each.value}  ({each.why})") for each in run.plan.choices]
        pairs += [(f"  {name}", f"{count:,}") for name, count in run.plan.sizes.items()]
        if run.team.size > 1:
            pairs.append(("  processes", f"{run.team.size}  ({run.team.backend})"))
        self._console.print(f"{run.folder.path}", style="bold")
        print_pairs(self._console, pairs)
        if run.step:
            self._console.print(f"resumed at step {run.step} of {run.plan.steps}")


def _command() -> str:
    """The command that repeats this run."""
    given = [each for each in sys.argv[1:] if each != "--resume"]
    return shlex.join(["onward", *given])


def _start_processes(nproc: int, max_restarts: int) -> int:
    """Run this command in several processes; the exit code of the run."""
    command = [sys.executable, "-m", "onward", *sys.argv[1:]]
    return run_local(command, nproc, variables=os.environ, max_restarts=max_restarts)


def _train_silently(resume: bool, settings: dict[str, Any]) -> None:
    """Train in a process that is not the first one: it prints only errors of its own."""
    with _reported_by_one():
        run = train_model(resume=resume, **settings)
    if run.stopped == INTERRUPTED:
        raise typer.Exit(130)


@contextlib.contextmanager
def _reported_by_one() -> Iterator[None]:
    """Within it, an error that another process reports ends this one in silence."""
    try:
        yield
    except PeerFailed:
        raise typer.Exit(_FAILED) from None


def _show_result(console: Console, run: FinishedRun) -> None:
    if run.stopped == INTERRUPTED:
        warn(console, f"interrupted at step {run.steps}; the same command with --resume continues")
    numbers = "  ".join(f"{name} {number:.4g}" for name, number in run.metrics.items())
    _show_processes(console, run)
    steps = "1 step" if run.steps == 1 else f"{run.steps:,} steps"
    console.print(f"{steps} in {show_seconds(run.seconds)}  {numbers}", style="bold")
    folder = run.folder
    written = {
        folder.model: "the trained model",
        folder.adapter: "the adapters alone",
        folder.report: "the run on one page",
        folder.profile: "where the time of its steps goes",
        folder.metrics: "every number",
    }
    print_pairs(console, [(f"  {path}", what) for path, what in written.items() if path.exists()])


def _show_processes(console: Console, run: FinishedRun) -> None:
    """What several processes sent, and how fast they were together."""
    if run.processes == 1:
        return
    found = run.folder.read_record()[PROCESSES]
    sent, speed = show_bytes(found["bytes_sent_per_step"]), found["rows_per_second"] or 0
    console.print(
        f"{found['count']} processes ({found['backend']}): each sent {sent} a step; "
        f"{speed:,.0f} rows/s in all"
    )
