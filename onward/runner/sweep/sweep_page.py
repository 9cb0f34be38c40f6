"""The page of a sweep: what mattered, in one HTML file that needs no network."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from onward.measure.page_style import page_style
from onward.measure.profile.html_page import script_json
from onward.runner.sweep.search_space import NumberRange, SearchSpace, show_value
from onward.runner.sweep.sweep_result import SweepResult, TrialRow


def render_sweep(result: SweepResult, space: SearchSpace) -> str:
    """The page with its style and its data."""
    text = files("onward.runner.sweep").joinpath("sweep_page.html").read_text("utf-8")
    text = text.replace("__STYLE__", page_style())
    return text.replace("__DATA__", script_json(page_data(result, space)))


def page_data(result: SweepResult, space: SearchSpace) -> dict[str, Any]:
    """What the page shows, as JSON."""
    return {
        "name": result.folder.name,
        "monitor": result.monitor,
        "higher": result.higher_is_better,
        "command": result.command,
        "method": result.importance_method,
        "importances": dict(result.importances),
        "settings": [_setting(name, values) for name, values in space.items()],
        "best": None if result.best is None else result.best.number,
        "trials": [_trial(row, result) for row in result.rows],
    }


def _setting(name: str, values: Any) -> dict[str, Any]:
    if isinstance(values, NumberRange):
        return {"name": name, "low": values.low, "high": values.high, "log": values.log}
    return {"name": name, "values": [show_value(value) for value in values.values]}


def _trial(row: TrialRow, result: SweepResult) -> dict[str, Any]:
    return {
        "number": row.number,
        "state": row.state,
        "value": row.value,
        "seconds": row.seconds,
        "error": row.error,
        "shown": {name: show_value(value) for name, value in row.settings.items()},
        "settings": {
            name: value
            for name, value in row.settings.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        },
    }
