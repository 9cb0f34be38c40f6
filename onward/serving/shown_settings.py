"""What `onward serve --show-config` prints: TOML that reads back as the same settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from onward.configs.setting_kind import setting_group
from onward.configs.settings_files import toml_key, toml_value
from onward.serving.settings import ModelSettings, ServingSettings
from onward.serving.settings_sources import HIDDEN, SECRET, Key, MergedSettings

_LINE = 76  # columns of a heading


def show_settings(merged: MergedSettings, show_keys: bool = False) -> str:
    """Every setting with its explanation, its value and where it was given.

    Keys are hidden; a file with hidden keys is refused, unless the keys are given elsewhere.
    """
    groups: dict[str, list[str]] = {}
    for settings in (merged.server, merged.model):
        for name, field in type(settings).model_fields.items():
            if name == "models":
                continue
            lines = groups.setdefault(setting_group(type(settings), name), [])
            lines.append(f"# {field.description}")
            lines.append(_line(merged, (name,), settings, show_keys))
    parts = [f"{_heading(title)}\n" + "\n".join(lines) for title, lines in groups.items()]
    field = ServingSettings.model_fields["models"]
    parts.append(f"{_heading('Models by their names')}\n# {field.description}")
    for model, table in merged.server.models.items():
        own = ModelSettings.model_validate(table)
        lines = [_line(merged, ("models", model, name), own, show_keys) for name in table]
        parts.append(f"[models.{toml_key(model)}]\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(merged: MergedSettings, key: Key, settings: BaseModel, show_keys: bool) -> str:
    name, place = key[-1], _one_line(merged.places.get(key, "default"))
    value = settings.model_dump(mode="json")[name]
    if name in SECRET and value and not show_keys:
        value, place = (
            [HIDDEN],
            f"{place}; --show-keys prints {'it' if len(value) == 1 else 'them'}",
        )
    if value is None and key not in merged.places:  # TOML has no null
        return f"# {name} =  # {place}"
    shown = "none" if value is None else _without_none(value)
    return f"{name} = {toml_value(shown)}  # {place}"


def _without_none(value: Any) -> Any:
    """A value without the keys that have none: they are defaults of tables."""
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def _heading(title: str) -> str:
    return f"# -- {title} {'-' * max(_LINE - len(title), 3)}"


def _one_line(text: str) -> str:
    """A file's name as a comment of TOML may contain it."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
