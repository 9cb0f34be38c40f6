"""MetricsCsv: the numbers of a run as a CSV file, which an interrupted run continues."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.graph.paths import writing
from onward.runner.callbacks.logged_steps import LoggedSteps
from onward.runner.events import Evaluation, StepRecord
from onward.runner.run import Run

COLUMNS = (
    "step", "epoch", "loss", "learning_rate", "gradient_norm", "samples_per_second", "data_wait",
    "memory",
)  # fmt: skip

Row = dict[str, str]  # by column; fields that are empty are left out


class MetricsCsv(LoggedSteps):
    """Writes metrics.csv: a line every `log_every` steps and one for each evaluation.

    Every line reaches the file at once. A resumed run first removes the lines that were written
    after its checkpoint, so that the file is as if the run had never been interrupted.
    """

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._rows = 0  # written so far
        self._kept: int | None = None  # rows at the checkpoint that the run continues from

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        columns, rows = list(COLUMNS), []
        if run.step:
            found, old = _read(run.folder.metrics)
            columns += [name for name in found if name not in columns]
            rows = [row for row in old[: self._kept] if int(row["step"]) <= run.step]
        self._replace(run.folder.metrics, columns, rows)

    def log_step(self, run: Run, step: StepRecord, numbers: Mapping[str, float]) -> None:
        self._append(run.folder.metrics, step.number, step.epoch, numbers)

    def on_evaluate(self, run: Run, evaluation: Evaluation) -> None:
        super().on_evaluate(run, evaluation)
        self._append(run.folder.metrics, evaluation.step, evaluation.epoch, evaluation.numbers)

    def state(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._kept = int(state["rows"]) if "rows" in state else None

    def _append(self, path: Path, step: int, epoch: int, numbers: Mapping[str, float]) -> None:
        row = {"step": str(step), "epoch": str(epoch)}
        row |= {name: f"{number:.9g}" for name, number in numbers.items()}
        if any(name not in self._columns for name in row):
            columns = [*self._columns, *(name for name in row if name not in self._columns)]
            self._replace(path, columns, [*_read(path)[1], row])
            return
        # numbers need no quotes: a csv.DictWriter would take much longer
        line = ",".join(row.get(name, "") for name in self._columns) + "\n"
        with writing(path), path.open("ab", buffering=0) as file:
            file.write(line.encode())
        self._rows += 1

    def _replace(self, path: Path, columns: list[str], rows: list[Row]) -> None:
        """Write the whole file, which replaces the old one in one move."""
        heading = dict(zip(columns, columns))
        new = path.with_suffix(".csv.new")
        with writing(path):
            new.write_text(_text(columns, [heading, *rows]), encoding="utf-8", newline="")
            new.replace(path)
        self._columns, self._rows = columns, len(rows)


def read_metrics(path: str | Path) -> dict[str, list[tuple[int, float]]]:
    """The columns of a metrics.csv as points (step, number); a cut last line is left out."""
    columns, rows = _read(Path(path))
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in columns if name != "step"}
    for row in rows:
        for name, points in found.items():
            if row.get(name):
                points.append((int(row["step"]), float(row[name])))
    return found


def _text(columns: list[str], rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue()


def _read(path: Path) -> tuple[list[str], list[Row]]:
    """Columns and complete rows of the file; nothing if there is none."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], []
    complete = text[: text.rfind("\n") + 1]  # a killed process may leave half a line
    columns, *lines = list(csv.reader(io.StringIO(complete))) or [[]]
    rows = [
        {name: field for name, field in zip(columns, line) if field}
        for line in lines
        if len(line) == len(columns) and all(map(_is_number, line))
    ]
    return columns, [row for row in rows if row.get("step", "").isdecimal()]


def _is_number(field: str) -> bool:
    try:
        float(field or 0)
    except ValueError:
        return False
    return True
