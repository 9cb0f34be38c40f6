"""The curves of a run, whatever state its metrics.csv is in."""

from __future__ import annotations

from onward.errors import OnwardError
from onward.runner.callbacks.csv_log import read_metrics
from onward.runner.run_folder import RunFolder

Curves = dict[str, list[tuple[int, float]]]  # a column to its points (step, number)


def read_curves(folder: RunFolder) -> Curves:
    """The columns of metrics.csv that have a number; none if it is missing or cannot be read."""
    try:
        columns = read_metrics(folder.metrics)
    except (OSError, ValueError, OnwardError):
        return {}
    return {name: points for name, points in columns.items() if points}
