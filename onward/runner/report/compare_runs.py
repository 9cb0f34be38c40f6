"""Read runs back from their folders and compare them: numbers, settings, curves."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.runner.config import TrainConfig
from onward.runner.report.metrics_file import Curves, read_curves
from onward.runner.run_folder import RunFolder
from onward.runner.run_process import has_died

UNKNOWN, DIED = "unknown", "died"
_STATUSES = ("running", "finished", "interrupted", "failed")
_FILES = ("run.json", "metrics.csv", "config.toml")  # a folder with one of them is a run's
_OWN = ("name", "runs")  # settings that say where a run is, not what it does
_LOWER_IS_BETTER = ("loss", "mae", "mse", "rmse", "perplexity", "error", "seconds", "step")


@dataclass(frozen=True)
class RunSummary:
    """One run: what its files say, with None or nothing where they say nothing."""

    name: str
    path: Path
    status: str  # running, finished, interrupted, failed, died or unknown
    model: str = ""
    started: str = ""  # ISO 8601
    seconds: float | None = None
    step: int | None = None
    steps: int | None = None  # if nothing had stopped it
    monitor: str = ""  # the number that chose the best weights: "val_accuracy"
    higher_is_better: bool = False  # of the monitor
    best: Mapping[str, float] = field(default_factory=dict)  # numbers of the best evaluation
    best_step: int | None = None
    last: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # that are not the default
    error: str = ""

    def number(self, name: str) -> float | None:
        """A number by its name: of the best evaluation, else of the last; or seconds, step."""
        if name in self.best or name in self.last:
            return self.best.get(name, self.last.get(name))
        return {"seconds": self.seconds, "step": self.step}.get(name)

    def curves(self) -> Curves:
        """The columns of metrics.csv, each as points (step, number)."""
        return read_curves(RunFolder(self.path))


def read_runs(folder: str | Path = "runs") -> list[RunSummary]:
    """The runs of a folder, the oldest first; files that are missing or broken leave gaps.

    >>> read_runs("no folder")
    []
    """
    try:
        inside = sorted(Path(folder).iterdir())
    except OSError:
        return []
    runs = [read_run(each) for each in inside if any((each / name).is_file() for name in _FILES)]
    return sorted(runs, key=lambda run: (run.started, run.name))


def read_run(path: Path) -> RunSummary:
    """One run from its folder."""
    record = RunFolder(path).read_record()
    settings = _read_settings(RunFolder(path).config)
    best = _numbers(record.get("best"))
    status = str(record.get("status"))
    return RunSummary(
        name=path.name,
        path=path,
        status=DIED if has_died(record) else status if status in _STATUSES else UNKNOWN,
        model=Path(str(record.get("model") or settings.get("model") or "")).name,
        started=str(record.get("started") or ""),
        seconds=_number(record.get("seconds")),
        step=_whole(record.get("step")),
        steps=_whole(record.get("steps")),
        monitor=str(record.get("monitor") or ""),
        higher_is_better=record.get("higher_is_better") is True,
        best={name: number for name, number in best.items() if name != "step"},
        best_step=_whole(best.get("step")),
        last=_numbers(record.get("last")),
        settings=settings,
        error=str(record.get("error") or ""),
    )


def number_names(runs: Iterable[RunSummary]) -> list[str]:
    """The names of all numbers that the runs measured."""
    return list(dict.fromkeys(name for run in runs for name in (*run.best, *run.last)))


def sort_runs(runs: Sequence[RunSummary], number: str) -> list[RunSummary]:
    """The runs, the best of a number first and those without it last."""
    known = [*number_names(runs), "seconds", "step"]
    if runs and number not in known:
        raise OptionError(f"no run measured {number!r}\n{suggest_names(number, known)}")
    sign = -1.0 if is_higher_better(runs, number) else 1.0

    def key(run: RunSummary) -> tuple[bool, float]:
        found = run.number(number)
        missing = found is None or math.isnan(found)
        return missing, 0.0 if missing or found is None else sign * found

    return sorted(runs, key=key)


def is_higher_better(runs: Iterable[RunSummary], number: str) -> bool:
    """Whether the higher number is better: as a run that monitored it says, else by its name."""
    for run in runs:
        if run.monitor == number:
            return run.higher_is_better
    return not any(word in number.split("_") for word in _LOWER_IS_BETTER)


def different_settings(runs: Sequence[RunSummary]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs, with the value of each run."""
    fields = TrainConfig.model_fields
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _OWN)
    different = {}
    for name in names:
        default = fields[name].get_default(call_default_factory=True) if name in fields else None
        values = [run.settings.get(name, default) for run in runs]
        if any(value != values[0] for value in values):
            different[name] = values
    return different


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):  # missing, not UTF-8, or not TOML
        return {}


def _numbers(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        return {}
    read = {str(name): _number(value) for name, value in found.items()}
    return {name: number for name, number in read.items() if number is not None}


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _whole(found: Any) -> int | None:
    number = _number(found)
    return int(number) if number is not None and math.isfinite(number) else None
