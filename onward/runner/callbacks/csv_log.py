"""metrics.csv: read back as curves."""

from __future__ import annotations

import csv
from pathlib import Path


def read_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """The columns of a metrics.csv: points (step, number), where a number was measured."""
    columns: dict[str, list[tuple[int, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                step = int(row.pop("step"))
                numbers = {name: float(text) for name, text in row.items() if text}
            except (TypeError, ValueError, KeyError):  # a line that was cut off
                continue
            for name, number in numbers.items():
                columns.setdefault(name, []).append((step, number))
    return columns
