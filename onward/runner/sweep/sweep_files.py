"""The folder of a sweep: made for a new one, or checked for one that is continued.

sweeps/NAME/
  sweep.json        what is searched, and from which settings
  trials.journal    Optuna's journal: every trial and every evaluation
  runs/trial-0000/  the run of each trial
  best.toml         the best settings
  sweep.html        what mattered
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from onward.errors import FileExists, FileMissing, OptionError
from onward.graph.paths import make_folder, suggest_path, writing
from onward.runner.sweep.sweep_plan import SweepPlan

RECORD = "sweep.json"
SWEEPS = Path("sweeps")


def open_folder(folder: Path | None, resume: bool, plan: SweepPlan) -> Path:
    """The folder of a new sweep, or that of the one to continue."""
    record = _record(plan)
    if resume:
        if folder is None:
            raise OptionError("which sweep should continue?\ngive its folder with --folder")
        _check_same(folder, record)
        return folder
    folder = folder or new_folder_path(plan.settings.get("model"))
    if (folder / RECORD).exists():
        raise FileExists(f"{folder} has a sweep\ncontinue it with --resume, or choose another one")
    make_folder(folder)
    with writing(folder / RECORD):
        (folder / RECORD).write_text(json.dumps(record, indent=1), "utf-8")
    return folder


def new_folder_path(model: Any) -> Path:
    """The folder of a sweep that has no name: the model's, with the next free number."""
    stem = Path(model).stem if isinstance(model, (str, os.PathLike)) else "model"
    number = 1
    while (SWEEPS / f"{stem}-{number}").exists():
        number += 1
    return SWEEPS / f"{stem}-{number}"


def _record(plan: SweepPlan) -> dict[str, Any]:
    settings = {name: _as_json(value) for name, value in plan.settings.items()}
    found: dict[str, Any] = json.loads(
        json.dumps(
            {
                "search": {name: str(values) for name, values in plan.space.items()},
                "points": len(plan.points),
                "settings": settings,
            }
        )
    )
    return found


def _as_json(value: Any) -> Any:
    """A setting in the record; of what is in memory, its type."""
    plain = isinstance(value, (str, int, float, list, dict, type(None)))
    return value if plain else type(value).__name__


def _check_same(folder: Path, record: dict[str, Any]) -> None:
    """Refuse to continue a sweep with another search: its trials could not be compared."""
    try:
        before = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        raise FileMissing(f"no sweep at {folder}\n{suggest_path(folder)}") from None
    for part in ("search", "settings"):
        old, new = before.get(part, {}), record[part]
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                raise OptionError(
                    f"the sweep in {folder} has {name}={old.get(name)!r}, not {new.get(name)!r}\n"
                    "continue it with the same command and --resume, or give another --folder"
                )
