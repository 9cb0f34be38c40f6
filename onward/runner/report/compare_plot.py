"""The curves of several runs over each other: as a figure, or as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import OptionError
from onward.graph.paths import writing
from onward.message_text import list_names, suggest_names
from onward.runner.figures.curves import draw_runs
from onward.runner.figures.save import FORMATS, save_figure
from onward.runner.report.compare_runs import (
    RunSummary,
    different_settings,
    is_higher_better,
    number_names,
)
from onward.runner.report.metrics_file import Curves
from onward.runner.report.page_data import curve_points, plain_json
from onward.runner.report.page_template import fill_page
from onward.runner.report.run_figures import main_columns

PLOT_FORMATS = (*FORMATS, ".html")


def write_plot(runs: Sequence[RunSummary], path: Path, columns: Sequence[str] = ()) -> None:
    """Write one plot of all runs as .svg, .png or .html; without columns, the main ones.

    A column "loss" has the curves of training and of validation, "val_loss" only the latter.
    """
    check_plot_path(path)
    curves = {run.name: run.curves() for run in runs}
    chosen = {name: _choose(found, columns) for name, found in curves.items()}
    if not any(chosen.values()):
        known = dict.fromkeys(name for found in curves.values() for name in found)
        wanted = columns[0] if columns else "loss"
        raise OptionError(f"no run has a curve of {wanted!r}\n{suggest_names(wanted, known)}")
    if path.suffix.lower() != ".html":
        save_figure(draw_runs({name: found for name, found in chosen.items() if found}), path)
        return
    page = fill_page("compare_page.html", _page_data(runs, chosen if columns else curves))
    with writing(path):
        path.write_text(page, "utf-8")


def check_plot_path(path: Path) -> None:
    """Refuse a plot whose format is unknown."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise OptionError(
            f"a plot cannot be written as {path.suffix or 'a file without suffix'}: {path}\n"
            f"give a path that ends in one of {list_names(PLOT_FORMATS)}"
        )


def _choose(curves: Curves, columns: Sequence[str]) -> Mapping[str, Any]:
    if not columns:
        return main_columns(curves)
    names = [name for column in columns for name in (column, f"val_{column}")]
    return {name: curves[name] for name in names if name in curves}


def _page_data(
    runs: Sequence[RunSummary], curves: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    different = different_settings(runs)
    numbers = number_names(runs)
    return {
        "runs": [
            {
                "name": run.name,
                "status": run.status,
                "seconds": plain_json(run.seconds),
                "step": run.step,
                "numbers": {name: plain_json(run.number(name)) for name in numbers},
                "settings": {name: plain_json(different[name][i]) for name in different},
                "columns": {
                    name: curve_points(points) for name, points in curves[run.name].items()
                },
            }
            for i, run in enumerate(runs)
        ],
        "numbers": [{"name": name, "higher": is_higher_better(runs, name)} for name in numbers],
        "settings": list(different),
    }
