"""Check values against a settings class; one clear error of what pydantic finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args

import pydantic
from pydantic import BaseModel

from onward.configs.setting_kind import (
    SettingsClass,
    check_setting_name,
    element_class,
    setting_kind,
)
from onward.errors import OptionError
from onward.message_text import suggest_names

Settings = TypeVar("Settings", bound=BaseModel)

_OUTSIDE = frozenset(
    {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"}
)

_NUMBERS = {
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
}


def make_settings(settings: type[Settings], *layers: Mapping[str, Any]) -> Settings:
    """Checked settings; later layers (a file, then flags, then keywords) replace earlier ones."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    for name in merged:
        check_setting_name(settings, name)
    try:
        return settings.model_validate(merged)
    except pydantic.ValidationError as error:
        raise _explain(settings, error, merged) from None


def changed_settings(settings: BaseModel) -> dict[str, Any]:
    """The settings that are not the default."""
    return settings.model_dump(exclude_defaults=True)


def _explain(
    settings: SettingsClass, error: pydantic.ValidationError, given: Mapping[str, Any]
) -> OptionError:
    """The first problem in two lines: the setting and its value, then what it must be."""
    found = error.errors(include_url=False)
    first = found[0]
    name = str(first["loc"][0])
    if setting_kind(settings, name).has_tables and len(first["loc"]) > 1:
        return _explain_element(settings, first)
    choices = _choices(settings.model_fields[name].annotation)
    value = given.get(name)
    outside = next((each for each in found if each["type"] in _OUTSIDE), None)
    if choices and outside is not None:  # a number, but not one that is allowed
        words = " or ".join(map(repr, choices))
        return OptionError(f"{name} cannot be {value!r}: {_law(outside)}, or {words}")
    if choices and isinstance(value, str):
        number = next((_NUMBERS[each["type"]] for each in found if each["type"] in _NUMBERS), None)
        if number is not None:
            words = " or ".join(map(repr, choices))
            return OptionError(f"{name} cannot be {value!r}: it must be {number}, or {words}")
        return OptionError(f"{name} cannot be {value!r}\n{suggest_names(value, choices)}")
    if choices and isinstance(value, list):
        wrong = next((str(each) for each in value if each not in choices), "")
        return OptionError(f"{name} cannot be {wrong!r}\n{suggest_names(wrong, choices)}")
    return OptionError(f"{name} cannot be {value!r}: {_law(first)}{_see(settings)}")


def _explain_element(settings: SettingsClass, problem: Any) -> OptionError:
    """The problem of a value inside a table, such as padding.ids.axis."""
    *outer, last = map(str, problem["loc"])
    inner = element_class(settings, outer[0])
    known = list(inner.model_fields) if inner is not None else []
    if problem["type"] == "extra_forbidden":
        return OptionError(
            f"there is no setting {last!r} in {'.'.join(outer)}\n{suggest_names(last, known)}"
        )
    place = ".".join([*outer, last])
    if problem["type"] == "missing":
        return OptionError(f"{place} is missing\ngive {', '.join(known)}")
    return OptionError(f"{place} cannot be {problem['input']!r}: {_law(problem)}{_see(settings)}")


def _see(settings: SettingsClass) -> str:
    """Where all settings are explained, as the second line of an error."""
    command = getattr(settings, "help_command", "")
    return f"\nsee: {command}" if command else ""


def _law(problem: Any) -> str:
    """What a value must be, in pydantic's words."""
    text = str(problem["msg"]).replace("Input should be", "it must be")
    return text.removeprefix("Value error, ")


def _choices(annotation: Any) -> list[str]:
    """The names that an annotation allows: those of its Literals."""
    arguments = get_args(annotation)
    if getattr(annotation, "__origin__", None) is Literal:
        return [each for each in arguments if isinstance(each, str)]
    return [name for each in arguments for name in _choices(each)]
