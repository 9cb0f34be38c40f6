"""The curves of a run, whatever state its metrics.csv is in."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from onward.errors import OnwardError
from onward.lazy import LazyModule
from onward.runner.run_folder import RunFolder

if TYPE_CHECKING:
    from onward.runner.callbacks import csv_log
else:  # callbacks load the training session, which a list of runs does not need
    csv_log = LazyModule("onward.runner.callbacks.csv_log")

Curves = dict[str, list[tuple[int, float]]]  # a column to its points (step, number)
_UNREADABLE = (OSError, ValueError, LookupError, csv.Error, OnwardError)


def read_curves(folder: RunFolder) -> Curves:
    """The columns of metrics.csv that have a number; none if it is missing or cannot be read."""
    try:
        columns = csv_log.read_metrics(folder.metrics)
    except _UNREADABLE:
        return {}
    return {name: points for name, points in columns.items() if points}
