"""The result of a sweep: its trials, best first, and the best settings as a config file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onward.graph.paths import writing
from onward.runner.config import make_config
from onward.runner.config_files import config_to_toml
from onward.runner.sweep.search_space import SearchSpace
from onward.runner.sweep.study_journal import INTERRUPTED_MARK

FINISHED, CUT, FAILED, AGAIN = "finished", "pruned", "failed", "interrupted"
BEST, PAGE = "best.toml", "sweep.html"


@dataclass(frozen=True)
class TrialRow:
    """One trial: the values that were searched, and how it ended."""

    number: int
    state: str  # finished, pruned, failed or interrupted
    settings: Mapping[str, Any]
    value: float | None = None  # the monitored number; of a pruned trial, its last one
    numbers: Mapping[str, float] | None = None  # all numbers of the best evaluation
    seconds: float = 0.0
    run: str = ""  # the run's folder
    error: str = ""


@dataclass(frozen=True)
class SweepResult:
    """The trials of a sweep, the best first.

    `best` has the settings of the best one, `folder` the files: best.toml and sweep.html.
    """

    folder: Path
    rows: Sequence[TrialRow]
    monitor: str
    higher_is_better: bool
    importances: Mapping[str, float]
    importance_method: str

    @property
    def best(self) -> TrialRow | None:
        """The best trial that finished; None if none has."""
        return next((row for row in self.rows if row.state == FINISHED), None)

    @property
    def command(self) -> str:
        """The command that trains with the best settings."""
        return f"onward train --config {shlex.quote(str(self.folder / BEST))}"

    @property
    def page(self) -> Path:
        return self.folder / PAGE

    def to_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "folder": str(self.folder),
            "monitor": self.monitor,
            "higher_is_better": self.higher_is_better,
            "importances": dict(self.importances),
            "importance_method": self.importance_method,
            "best": None if self.best is None else self.best.number,
            "command": self.command,
            "trials": [asdict(row) for row in self.rows],
        }


def read_row(trial: Any, space: SearchSpace) -> TrialRow:
    """A trial of Optuna as a row."""
    attributes = trial.user_attrs
    state = {"COMPLETE": FINISHED, "PRUNED": CUT, "FAIL": FAILED}.get(trial.state.name, AGAIN)
    if attributes.get(INTERRUPTED_MARK):
        state = AGAIN
    value = trial.value if state in (FINISHED, CUT) else None
    sign = -1.0 if attributes.get("higher_is_better") else 1.0
    return TrialRow(
        trial.number,
        state,
        {name: space[name].decode(value) for name, value in trial.params.items() if name in space},
        None if value is None else sign * value,
        attributes.get("numbers"),
        trial.duration.total_seconds() if trial.duration is not None else 0.0,
        attributes.get("run", ""),
        attributes.get("error", ""),
    )


def sort_rows(rows: Sequence[TrialRow], higher_is_better: bool) -> list[TrialRow]:
    """The best first; then those that were pruned, failed or interrupted."""
    order = (FINISHED, CUT, FAILED, AGAIN)
    sign = -1.0 if higher_is_better else 1.0

    def key(row: TrialRow) -> tuple[int, float, int]:
        return order.index(row.state), 0.0 if row.value is None else sign * row.value, row.number

    return sorted(rows, key=key)


def write_best(result: SweepResult, settings: Mapping[str, Any]) -> None:
    """Write the best settings as a config; a model or data in memory cannot be in it."""
    if result.best is None:
        return
    of_trial = {name: value for name, value in settings.items() if _is_plain(value)}
    config = make_config(of_trial, result.best.settings)
    path = result.folder / BEST
    number = f"{result.monitor} {result.best.value:.6g}"
    text = f"# trial {result.best.number}: {number}\n# {result.command}\n{config_to_toml(config)}"
    with writing(path):
        path.write_text(text, "utf-8", newline="\n")


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, list, dict, type(None)))
