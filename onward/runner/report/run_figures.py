"""The figures of a run as files: curves, confusion matrix, ROC curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onward.errors import PackageMissing
from onward.runner.figures.confusion_heatmap import draw_confusion
from onward.runner.figures.curves import LOSS, VALIDATION, draw_runs
from onward.runner.figures.figure import Figure, Point
from onward.runner.figures.roc_plot import draw_roc
from onward.runner.figures.save import save_figure
from onward.runner.report.report_facts import ReportFacts
from onward.runner.run_folder import RunFolder

NO_PILLOW = (
    "figures were written as SVG: Pillow, which writes PNG, is not installed "
    "(pip install onward[images])"
)
_MOST_CLASSES = 100  # of a confusion matrix that is drawn
_LEARNING_RATE = "learning_rate"
Columns = Mapping[str, Sequence[Point]]


def write_figures(folder: RunFolder, columns: Columns, facts: ReportFacts) -> tuple[str, ...]:
    """Write the figures that the run has numbers for; return notes for the reader."""
    figures = dict(_draw_figures(columns, facts))
    try:
        for name, figure in figures.items():
            save_figure(figure, folder.path / f"{name}.png")
    except PackageMissing:
        for name, figure in figures.items():
            save_figure(figure, folder.path / f"{name}.svg")
        return (NO_PILLOW,)
    return ()


def _draw_figures(columns: Columns, facts: ReportFacts) -> list[tuple[str, Figure]]:
    figures = []
    if shown := main_columns(columns):
        figures.append(("curves", draw_runs({"": shown})))
    counts = confusion_counts(facts)
    if counts is not None and len(counts) <= _MOST_CLASSES:
        figures.append(("confusion", draw_confusion(counts, [str(c) for c in facts.classes])))
    if facts.roc is not None and math.isfinite(area := roc_area(facts)):
        figures.append(("roc", draw_roc({f"AUC {area:.4f}": facts.roc})))
    return figures


def main_columns(columns: Columns) -> dict[str, Sequence[Point]]:
    """The loss, what was measured on held-out data, and the learning rate."""
    names = [LOSS, *(name for name in columns if name.startswith(VALIDATION)), _LEARNING_RATE]
    return {name: columns[name] for name in names if columns.get(name)}


def confusion_counts(
    facts: ReportFacts,
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None:
    """The counts of the evaluation, if it has those of the classes."""
    if facts.evaluation is None or facts.evaluation.confusion is None:
        return None
    counts = np.asarray(facts.evaluation.confusion, np.float64)
    return counts if counts.shape == (len(facts.classes),) * 2 and counts.size else None


def roc_area(facts: ReportFacts) -> float:
    """The area under the ROC curve; NaN if there is none."""
    if facts.roc is None:
        return math.nan
    rates = [np.asarray(rate, np.float64) for rate in facts.roc]
    return float(np.trapezoid(rates[1], rates[0])) if rates[0].size else math.nan


def figure_files(folder: RunFolder) -> list[Path]:
    """The figures that the folder has."""
    names = [
        f"{name}{suffix}" for name in ("curves", "confusion", "roc") for suffix in (".png", ".svg")
    ]
    return [folder.path / name for name in names if (folder.path / name).is_file()]
