"""onward runs: list the runs of a folder, compare some of them, open a report."""

from __future__ import annotations

import dataclasses
import webbrowser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from onward.cli import arguments
from onward.cli.console import make_console, make_table, print_json, print_pairs, print_table
from onward.cli.runs_text import show_duration, show_number, show_value, show_when
from onward.errors import FileMissing, OptionError
from onward.graph.paths import check_writable
from onward.runner.report.compare_plot import check_plot_path, write_plot
from onward.runner.report.compare_runs import (
    RunSummary,
    different_settings,
    number_names,
    read_run,
    read_runs,
    sort_runs,
)
from onward.runner.run_folder import RunFolder, find_run

_STYLES = {"finished": "green", "running": "blue", "failed": "red", "died": "red"}
_LOSS = "val_loss"


def _complete_runs(incomplete: str) -> list[str]:
    return [run.name for run in read_runs() if run.name.startswith(incomplete)]


def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Runs to compare; none: list all.", autocompletion=_complete_runs),
    ] = None,
    folder: Annotated[Path, typer.Option("--runs", help="The folder of all runs.")] = Path("runs"),
    sort: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="The best first, by a number such as val_accuracy."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NUMBER", help="Show only these numbers and curves; may repeat."),
    ] = None,
    best: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Show only the best run by a number.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write all curves over each other: .svg, .png or .html.")
    ] = None,
    open_report: Annotated[
        bool, typer.Option("--open", help="Open the report of a run in a browser.")
    ] = False,
    as_json: arguments.Json = False,
) -> None:
    """List the runs of a folder, or compare some of them.

    A comparison has the settings that differ, the numbers, and with --plot the curves of all runs
    over each other. A run whose process is gone before its end is shown as died.

    \b
    onward runs
    onward runs --sort val_accuracy
    onward runs cnn-1 cnn-2 --plot compare.html
    onward runs cnn-2 --open
    """
    console = make_console(stderr=as_json)
    if open_report:
        _open(console, folder, names or [])
        return
    if plot is not None:
        check_plot_path(plot)
        check_writable(plot)
    found = _select(folder, names or [])
    if number := best or sort:
        found = sort_runs(found, number)[: 1 if best else None]
    _check_numbers(found, metric or [])
    if as_json:
        print_json([_to_json(run) for run in found])
    elif not found:
        console.print(f"no runs in {folder}; onward train makes one", soft_wrap=True)
    elif names and len(found) > 1:
        _compare(console, found, metric)
    elif names or best:
        _show(console, found[0], metric)
    else:
        _list(console, found, metric)
    if plot is not None:
        write_plot(found, plot, metric or ())
        console.print(f"written: {plot}", soft_wrap=True)
    elif names and len(found) > 1 and not as_json:
        console.print("--plot compare.html draws the curves over each other", style="dim")


def _select(folder: Path, names: Sequence[str]) -> list[RunSummary]:
    """The named runs in their order, or all; runs of one name are shown with their paths."""
    if not names:
        return read_runs(folder)
    known = {run.name: run for run in read_runs(folder)}
    selected = [known.get(name) or read_run(find_run(folder, name).path) for name in names]
    counts = Counter(run.name for run in selected)
    unique = {
        str(run.path): run
        if counts[run.name] == 1
        else dataclasses.replace(run, name=str(run.path))
        for run in selected
    }
    return list(unique.values())


def _check_numbers(found: Sequence[RunSummary], names: Sequence[str]) -> None:
    """Refuse a number that no run has, neither at its best step nor as a curve."""
    for name in names:
        measured = any(run.number(name) is not None for run in found)
        if not measured and not any({name, f"val_{name}"} & set(run.curves()) for run in found):
            sort_runs(found, name)  # raises, with the most similar names


def _to_json(run: RunSummary) -> dict[str, Any]:
    return {**dataclasses.asdict(run), "path": str(run.path)}


# -- one report -----------------------------------------------------------------------------------


def _open(console: Console, folder: Path, names: Sequence[str]) -> None:
    if len(names) != 1:
        raise OptionError("--open takes the name of one run\nsuch as: onward runs NAME --open")
    [run] = _select(folder, names)
    report = RunFolder(run.path).report
    if not report.is_file():
        raise FileMissing(
            f"{run.name} has no report: {report}\n"
            f"it is written when the run ends; it is {run.status}"
        )
    console.print(str(report), soft_wrap=True)
    webbrowser.open(report.absolute().as_uri())


# -- tables ---------------------------------------------------------------------------------------


def _list(console: Console, found: Sequence[RunSummary], metric: Sequence[str] | None) -> None:
    numbers = list(metric or [])
    best = [] if metric else ["best"]
    loss = [_LOSS] if not metric and any(_LOSS in run.best for run in found) else []
    heads = [f">{name}" for name in (*best, *loss, *numbers)]
    table = make_table("run", "status", "model", ">steps", *heads, ">time", "started")
    for run in found:
        monitored = run.number(run.monitor)
        shown = "" if monitored is None else f"{run.monitor} {show_number(run.monitor, monitored)}"
        table.add_row(
            run.name,
            run.status,
            run.model,
            _steps(run),
            *([shown] if best else []),
            *(show_number(name, run.number(name)) for name in (*loss, *numbers)),
            show_duration(run.seconds),
            show_when(run.started),
            style=_STYLES.get(run.status) if run.status in ("failed", "died") else None,
        )
    print_table(console, table)
    console.print("onward runs NAME NAME compares runs; --open opens a report", style="dim")


def _steps(run: RunSummary) -> str:
    """Steps that were made; of how many, where it ended or is before the last."""
    if run.step is None:
        return ""
    whole = run.steps is None or run.steps == run.step
    return f"{run.step:,}" if whole else f"{run.step:,} of {run.steps:,}"


def _show(console: Console, run: RunSummary, metric: Sequence[str] | None) -> None:
    folder = RunFolder(run.path)
    console.print(run.name, style="bold")
    numbers = metric or number_names([run])
    where = "" if run.best_step is None else f" at step {run.best_step:,}"
    files = [("model", folder.model), ("report", folder.report)]
    print_pairs(
        console,
        [
            ("status", run.status + (f": {run.error}" if run.error else "")),
            ("steps", _steps(run)),
            ("time", show_duration(run.seconds)),
            ("started", show_when(run.started)),
            *((name, show_number(name, run.number(name)) + where) for name in numbers),
            *((name, show_value(value)) for name, value in run.settings.items()),
            *((name, str(path)) for name, path in files if path.is_file()),
        ],
    )


def _compare(console: Console, found: Sequence[RunSummary], metric: Sequence[str] | None) -> None:
    names = [run.name for run in found]
    different = different_settings(found)
    if different:
        table = make_table("setting", *names)
        for setting, values in different.items():
            table.add_row(setting, *map(show_value, values))
        print_table(console, table, "settings that differ")
    else:
        console.print("the runs have the same settings")
    table = make_table("number", *(f">{name}" for name in names))
    for number in metric or number_names(found):
        values = [run.number(number) for run in found]
        if all(value is None for value in values):  # it has only curves
            continue
        top = sort_runs(found, number)[0].number(number)
        table.add_row(number, *(_mark(number, value, value == top) for value in values))
    table.add_row("steps", *map(_steps, found))
    table.add_row("time", *(show_duration(run.seconds) for run in found))
    table.add_row("status", *(run.status for run in found))
    print_table(console, table, "numbers of the best step (* the best run)")


def _mark(name: str, value: float | None, is_best: bool) -> str:
    return show_number(name, value) + ("" if value is None else " *" if is_best else "  ")
