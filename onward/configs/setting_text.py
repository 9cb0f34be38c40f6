"""Settings as text: the values that flags, variables and search spaces give for each field."""

from __future__ import annotations

import json
from typing import Any

from onward.configs.check_settings import make_settings
from onward.configs.setting_kind import SettingsClass, setting_kind
from onward.errors import OptionError

JOIN = "+"  # several names in one value: inputs image=pixels+more


def read_setting(settings: SettingsClass, name: str, text: str) -> Any:
    """A setting's value from text, checked: several names are joined by +, pairs by ;."""
    kind = setting_kind(settings, name)
    if is_none(settings, name, text):
        return None
    if kind.is_mapping:
        return read_mapping(settings, name, text.split(";"))
    value: Any = text
    if kind.is_list and (not kind.is_text or JOIN in text):
        value = [part for part in text.split(JOIN) if part]
    return check_setting(settings, name, value)


def is_none(settings: SettingsClass, name: str, value: Any) -> bool:
    """Whether a value is the word none, for a setting that may be None and is not any text."""
    kind = setting_kind(settings, name)
    is_word = isinstance(value, str) and value.strip().lower() == "none"
    return is_word and kind.optional and not kind.is_text and "none" not in kind.choices


def read_mapping(settings: SettingsClass, name: str, texts: list[str]) -> dict[str, Any]:
    """A setting of NAME=VALUE pairs, checked; the value of a table is JSON."""
    kind = setting_kind(settings, name)
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            example = 'name={"key": 1}' if kind.has_tables else "zip=text"
            example = "image=pixels" if kind.lists_in_mapping else example
            raise OptionError(f"{name} takes NAME=VALUE, such as {example}, not {text!r}")
        found[key.strip()] = value
        if kind.lists_in_mapping:
            found[key.strip()] = [part for part in value.split(JOIN) if part]
        elif kind.has_tables:
            found[key.strip()] = read_json(name, value)
    checked: dict[str, Any] = check_setting(settings, name, found)
    return checked


def read_list(settings: SettingsClass, name: str, texts: list[str]) -> Any:
    """Repeated and comma-separated elements, checked; a path of data may contain commas."""
    kind = setting_kind(settings, name)
    if kind.has_tables:
        found = [read_json(name, text) for text in texts]
        tables = found[0] if len(found) == 1 and isinstance(found[0], list) else found
        return check_setting(settings, name, tables)
    if kind.is_text:
        return check_setting(settings, name, texts[0] if len(texts) == 1 else texts)
    if len(texts) == 1 and is_none(settings, name, texts[0]):
        return None
    if texts == ["auto"] and "auto" in kind.choices:
        return "auto"
    parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    return check_setting(settings, name, parts)


def read_json(name: str, text: str) -> Any:
    """A value that is written as JSON."""
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(
            f'{name} cannot be {text!r}: it must be JSON\nwrite it as {{"key": 1}}'
        ) from None


def check_setting(settings: SettingsClass, name: str, value: Any) -> Any:
    """The value as the settings keep it, or their error."""
    return getattr(make_settings(settings, {name: value}), name)
