"""onward train: train a model on data."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.config_flags import add_config_flags, given_settings
from onward.cli.console import make_console, print_pairs, warn
from onward.cli.training_display import TrainingDisplay
from onward.cli.watch_training import WatchFlags, check_watch, served_model, watch_training
from onward.errors import OptionError
from onward.formatting import show_seconds
from onward.runner.callback import Callback
from onward.runner.config import TrainConfig, make_config
from onward.runner.config_files import config_to_toml, read_config
from onward.runner.run import INTERRUPTED, Run
from onward.runner.train import FinishedRun
from onward.runner.train import train as train_model
from onward.runner.watch_models import HeldOutRows

_WATCH = "Continuous training"


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
    first step. Ctrl-C saves and stops; the same command with --resume continues.

    \b
    onward train model.onnx --data data.csv --target label
    onward train model.onnx --data photos --epochs 10 --flip --patience 3
    onward train model.onnx --data new.csv --new-head 3 --freeze 'encoder.*'
    onward train --config run.toml --learning-rate 0.01 --resume
    onward train model.onnx --data base.csv --watch incoming
    """
    settings = {} if config is None else read_config(config)
    settings |= given_settings(given, TrainConfig)
    if model is not None:
        settings["model"] = str(model)
    checked = make_config(settings)
    if show_config:
        typer.echo(config_to_toml(checked, everything=True), nl=False)
        return
    if checked.model is None:
        raise OptionError("there is no model to train\ngive one: onward train model.onnx")
    flags = WatchFlags(watch, min_improvement, replay, interval, once)
    check_watch(flags, checked)
    console = make_console()
    if checked.data is None and watch is not None:
        watch_training(console, flags, Path(checked.model), checked.validation, settings)
        return
    if checked.data is None:
        raise OptionError("there is no data to train on\ngive it: --data data.csv")
    held_out = HeldOutRows()
    with TrainingDisplay(console) as display:
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
        self._console.print(f"{run.folder.path}", style="bold")
        print_pairs(self._console, pairs)
        if run.step:
            self._console.print(f"resumed at step {run.step} of {run.plan.steps}")


def _command() -> str:
    """The command that repeats this run."""
    given = [each for each in sys.argv[1:] if each != "--resume"]
    return shlex.join(["onward", *given])


def _show_result(console: Console, run: FinishedRun) -> None:
    if run.stopped == INTERRUPTED:
        warn(console, f"interrupted at step {run.steps}; the same command with --resume continues")
    numbers = "  ".join(f"{name} {number:.4g}" for name, number in run.metrics.items())
    console.print(f"{run.steps:,} steps in {show_seconds(run.seconds)}  {numbers}", style="bold")
    folder = run.folder
    print_pairs(
        console,
        [
            (f"  {folder.model}", "the trained model"),
            (f"  {folder.report}", "the run on one page"),
            (f"  {folder.metrics}", "every number"),
        ],
    )
