"""Settings of a run as text: the values that flags and search spaces give for each field."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.runner.config import TrainConfig, make_config

JOIN = "+"  # several names in one value: inputs image=pixels+more


@dataclass(frozen=True)
class SettingKind:
    """What a setting may be, read from the field's type."""

    number: type | None = None  # int or float
    choices: tuple[str, ...] = ()  # its names, such as "auto" or "adamw"
    is_bool: bool = False
    is_text: bool = False
    is_list: bool = False
    is_mapping: bool = False
    optional: bool = False  # None is a value
    lists_in_mapping: bool = False


def check_setting_name(name: str) -> None:
    """Refuse a name that is not a setting's, with the nearest ones."""
    if name not in TrainConfig.model_fields:
        known = TrainConfig.model_fields
        raise OptionError(f"there is no setting {name!r}\n{suggest_names(str(name), known)}")


@cache
def setting_kind(name: str) -> SettingKind:
    """What the setting of this name may be.

    >>> setting_kind("learning_rate").number, setting_kind("learning_rate").choices
    (<class 'float'>, ('auto',))
    """
    check_setting_name(name)
    parts = list(_parts(TrainConfig.model_fields[name].annotation))
    types_ = [part for part in parts if isinstance(part, type)]
    lists = [part for part in parts if get_origin(part) is list]
    mappings = [part for part in parts if get_origin(part) is dict]
    literals = [part for part in parts if get_origin(part) is Literal]
    literals += [part for each in lists for part in get_args(each) if get_origin(part) is Literal]
    return SettingKind(
        number=next((each for each in (float, int) if each in types_), None),
        choices=tuple(str(name) for each in literals for name in get_args(each)),
        is_bool=bool in types_,
        is_text=str in types_,
        is_list=bool(lists),
        is_mapping=bool(mappings),
        optional=type(None) in types_,
        lists_in_mapping=any(get_origin(get_args(each)[1]) is list for each in mappings),
    )


def _parts(annotation: Any) -> Iterator[Any]:
    """The members of a union, however nested; `Annotated` is left out."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _parts(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _parts(each)
    else:
        yield annotation


def read_setting(name: str, text: str) -> Any:
    """A setting's value from text, checked.

    >>> read_setting("learning_rate", "1e-3"), read_setting("ema", "none")
    (0.001, None)
    >>> read_setting("freeze", "encoder.*+embed.*")
    ['encoder.*', 'embed.*']
    """
    kind = setting_kind(name)
    if kind.optional and not kind.is_text and text.strip().lower() == "none":
        return None
    if kind.is_mapping:
        return read_mapping(name, text.split(";"))
    value: Any = text
    if kind.is_list and (not kind.is_text or JOIN in text):
        value = [part for part in text.split(JOIN) if part]
    return check_setting(name, value)


def read_mapping(name: str, texts: list[str]) -> dict[str, Any]:
    """A setting of NAME=VALUE pairs, checked.

    >>> read_mapping("inputs", ["image=pixels+more"])
    {'image': ['pixels', 'more']}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            example = "image=pixels" if setting_kind(name).lists_in_mapping else "zip=text"
            raise OptionError(f"{name} takes NAME=VALUE, such as {example}, not {text!r}")
        lists = setting_kind(name).lists_in_mapping
        found[key.strip()] = [part for part in value.split(JOIN) if part] if lists else value
    checked: dict[str, Any] = check_setting(name, found)
    return checked


def check_setting(name: str, value: Any) -> Any:
    """The value as the config keeps it, or the config's error."""
    return getattr(make_config({name: value}), name)
