"""What the page of a run shows, as JSON: numbers, curves, classes, mistakes, settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onward.runner.config import TrainConfig
from onward.runner.figures.curves import thin
from onward.runner.report.class_scores_table import score_classes
from onward.runner.report.mistake_pictures import describe_mistakes
from onward.runner.report.report_facts import ReportFacts
from onward.runner.report.run_figures import Columns, confusion_counts, figure_files, roc_area
from onward.runner.run_folder import RunFolder

_MOST_CLASSES = 100  # of the matrix on the page; the table has all
_MOST_ROC_POINTS = 400
_FROM_RECORD = (
    "status", "stopped", "error", "started", "finished", "seconds", "step", "steps", "epoch",
    "monitor", "higher_is_better", "best", "last", "versions", "machine",
)  # fmt: skip


def report_data(
    folder: RunFolder, columns: Columns, facts: ReportFacts, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Everything that the report's page shows."""
    record = folder.read_record()
    counts = confusion_counts(facts)
    names = [str(name) for name in facts.classes]
    evaluation = facts.evaluation
    return {
        "name": folder.name,
        **{key: plain_json(record.get(key)) for key in _FROM_RECORD},
        "command": _read_command(folder) or str(record.get("command") or ""),
        "columns": {name: curve_points(points) for name, points in columns.items()},
        "numbers": plain_json(dict(evaluation.numbers)) if evaluation else {},
        "classes": names,
        "confusion": None if counts is None or len(names) > _MOST_CLASSES else counts.tolist(),
        "class_scores": [] if counts is None else score_classes(counts, names),
        "roc": _roc(facts),
        "mistakes": describe_mistakes(evaluation.mistakes if evaluation else (), facts.classes),
        "settings": list(_settings(facts.config)),
        "choices": [{"what": c.what, "value": c.value, "why": c.why} for c in facts.choices],
        "parameters": [facts.trained_parameters, facts.all_parameters],
        "sizes": {str(name): int(size) for name, size in facts.sizes.items()},
        "files": [{"name": path.name, "bytes": path.stat().st_size} for path in _files(folder)],
        "notes": list(notes),
    }


def curve_points(points: Sequence[tuple[float, float]]) -> list[list[float | None]]:
    """Points as JSON: not too many, None where a number is not finite."""
    return [[x, y if math.isfinite(y) else None] for x, y in thin(points)]


def plain_json(value: Any) -> Any:
    """A value as JSON: NaN and infinities, which JSON lacks, and other objects as text."""
    match value:
        case np.generic():
            return plain_json(value.item())
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): plain_json(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_json(item) for item in value]
    return str(value)


def _read_command(folder: RunFolder) -> str:
    try:
        return folder.command.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _settings(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each setting with its default; those of plugins, which have none, count as changed."""
    fields = TrainConfig.model_fields
    for name, value in config.items():
        known = fields.get(name)
        default = known.get_default(call_default_factory=True) if known else None
        extra = known.json_schema_extra if known else None
        yield {
            "name": str(name),
            "value": plain_json(value),
            "default": plain_json(default),
            "changed": known is None or value != default,
            "explanation": (known.description or "") if known else "",
            "group": str(extra.get("group", "")) if isinstance(extra, dict) else "",
        }


def _roc(facts: ReportFacts) -> dict[str, Any] | None:
    area = roc_area(facts)
    if facts.roc is None or not math.isfinite(area):
        return None
    across, up = (np.asarray(rate, np.float64).tolist() for rate in facts.roc)
    return {"area": area, "points": thin(list(zip(across, up)), _MOST_ROC_POINTS)}


def _files(folder: RunFolder) -> list[Any]:
    named = [
        folder.model, folder.adapter, folder.config, folder.metrics, folder.command,
        *figure_files(folder),
    ]  # fmt: skip
    return [path for path in named if path.is_file()]
