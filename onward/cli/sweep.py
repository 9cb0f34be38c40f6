"""onward sweep: search for the settings of a run, print the trials, write the best config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli.arguments import Json, complete_models, complete_paths
from onward.cli.config_flags import add_config_flags, given_settings
from onward.cli.console import make_console, make_table, print_json, print_table, warn
from onward.errors import OptionError
from onward.formatting import percent
from onward.quantities import parse_duration
from onward.runner.config import TEAM_SETTINGS, TrainConfig
from onward.runner.config_files import read_config
from onward.runner.sweep.run_sweep import sweep as run_sweep
from onward.runner.sweep.search_space import read_search_texts, show_value
from onward.runner.sweep.sweep_files import new_folder_path
from onward.runner.sweep.sweep_result import SweepResult, TrialRow
from onward.runner.sweep.sweep_trial import TRAIN

_TABLES = ("search", "ablate")
_CONFIGS = (".toml", ".yaml", ".yml")
_MOST_ROWS = 20  # of the table; the page has all
_run_trial = TRAIN  # what a trial runs; tests replace it


def sweep(
    model: Annotated[
        Path | None, typer.Argument(help="The model's file.", autocompletion=complete_models)
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="NAME=VALUES",
            help="A setting to search: batch_size=16,32 or learning_rate=1e-4..1e-1:log or "
            "crop=0..8:step=2.",
            autocompletion=lambda incomplete: [
                f"{name}=" for name in TrainConfig.model_fields if name.startswith(incomplete)
            ],
        ),
    ] = None,
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            "--ablate",
            metavar="NAME=VALUES",
            help="Run the settings as they are, and each of these changes by itself.",
        ),
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="Run every combination.")] = False,
    trials: Annotated[int, typer.Option("--trials", help="The number of trials.")] = 20,
    workers: Annotated[
        int, typer.Option("--workers", help="Trials at the same time, each in a process.")
    ] = 1,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where it is kept: sweeps/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the folder's sweep.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Start no trial after 10m, 2h.")
    ] = None,
    prune: Annotated[
        str,
        typer.Option(
            "--prune",
            metavar="median|hyperband|none",
            help="How trials that fall behind are stopped early.",
        ),
    ] = "median",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="A TOML or YAML file of settings, with a table [search] or [ablate].",
            autocompletion=lambda incomplete: complete_paths(incomplete, _CONFIGS),
        ),
    ] = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Search for the settings of a run: train with many of them and compare.

    Every trial is a run folder. The best settings are written as best.toml, and sweep.html shows
    what mattered. Ctrl-C stops all workers; the same command with --resume continues. All options
    of onward train are options of a sweep; --seed decides the search, too.

    \b
    onward sweep model.onnx --data d.csv --target y --search learning_rate=1e-4..1e-1:log \\
        --search batch_size=16,32,64 --trials 20 --workers 2 --folder sweeps/first
    onward sweep model.onnx --data d.csv --ablate flip=true --ablate ema=none,0.999
    """
    console = make_console(stderr=as_json)
    layers = {} if config is None else read_config(config, _TABLES)
    tables = {name: dict(layers.pop(name, {})) for name in _TABLES}
    tables["search"] |= read_search_texts(search or [])
    tables["ablate"] |= read_search_texts(ablate or [], "--ablate")
    settings = {**layers, **given_settings(given, TrainConfig)}
    source = model if model is not None else settings.pop("model", None)
    settings.pop("model", None)
    if source is None:
        raise OptionError("which model?\ngive its file: onward sweep model.onnx")
    where = folder or (None if resume else new_folder_path(source))
    try:
        result = run_sweep(
            source,
            search=tables["search"],
            ablate=tables["ablate"],
            grid=grid,
            trials=trials,
            workers=workers,
            folder=where,
            resume=resume,
            timeout=read_seconds(timeout),
            prune=prune,  # type: ignore[arg-type]  # checked there
            run_trial=_run_trial,
            finished=lambda row: _show_trial(make_console(stderr=True), row),
            **settings,
        )
    except KeyboardInterrupt:
        warn(
            make_console(stderr=True),
            f"interrupted; continue with the same command, --folder {where} and --resume",
        )
        raise
    if as_json:
        print_json(result.to_json())
    else:
        _show(console, result)


add_config_flags(sweep, TrainConfig, leave_out=("model", "runs", "name", *TEAM_SETTINGS))


def read_seconds(text: str | None) -> float | None:
    """A duration as seconds."""
    if text is None:
        return None
    found = parse_duration(text)
    if found is None:
        raise OptionError(f"--timeout takes a time such as 90s, 10m or 2h, not {text!r}")
    return found


def _show_trial(console: Console, row: TrialRow) -> None:
    """One line after a trial."""
    how = f"{row.value:.6g}" if row.value is not None else row.error
    state = "" if row.state == "finished" else f" ({row.state})"
    console.print(f"trial {row.number}{state}: {how}  {_pairs(row.settings)}", soft_wrap=True)


def _pairs(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={show_value(value)}" for name, value in settings.items())


def _show(console: Console, result: SweepResult) -> None:
    names = list(dict.fromkeys(name for row in result.rows for name in row.settings))
    table = make_table(">trial", f">{result.monitor}", *names, "", "run")
    for row in result.rows[:_MOST_ROWS]:
        value = "" if row.value is None else f"{row.value:.6g}"
        shown = [show_value(row.settings[name]) if name in row.settings else "" for name in names]
        note = "" if row.state == "finished" else row.error or row.state
        table.add_row(str(row.number), value, *shown, note, row.run)
    print_table(console, table, f"{len(result.rows)} trials, the best first")
    if len(result.rows) > _MOST_ROWS:
        console.print(f"{len(result.rows) - _MOST_ROWS} more are on the page", style="dim")
    if result.importances:
        shares = ", ".join(f"{name} {percent(share)}" for name, share in result.importances.items())
        console.print(f"what mattered: {shares}", soft_wrap=True)
    console.print(f"page: {result.page}", soft_wrap=True)
    console.print(f"next: {result.command}", soft_wrap=True)
