"""What a setting may be: read from the type of its field in a settings class.

A settings class is a pydantic model that forbids unknown names. A field's `json_schema_extra` may
give its group, the heading in the help; the class's `help_command` is what errors refer to.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from onward.errors import OptionError
from onward.message_text import suggest_names

SettingsClass = type[BaseModel]


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
    numbers_in_list: bool = False
    has_tables: bool = False  # its elements are dictionaries or settings themselves


def check_setting_name(settings: SettingsClass, name: str) -> None:
    """Refuse a name that is not a setting's, with the nearest ones."""
    known = settings.model_fields
    if name not in known:
        raise OptionError(f"there is no setting {name!r}\n{suggest_names(str(name), known)}")


@cache
def setting_kind(settings: SettingsClass, name: str) -> SettingKind:
    """What the setting of this name may be."""
    check_setting_name(settings, name)
    parts = list(_parts(settings.model_fields[name].annotation))
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
        numbers_in_list=any(_is_number(get_args(each)[0]) for each in lists),
        has_tables=any(_is_table(get_args(each)[-1]) for each in (*lists, *mappings)),
    )


def setting_group(settings: SettingsClass, name: str) -> str:
    """The heading of a setting in the help."""
    extra = settings.model_fields[name].json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else "Run"


def element_class(settings: SettingsClass, name: str) -> SettingsClass | None:
    """The settings class of the elements of a list or a mapping, if they have one."""
    for part in _parts(settings.model_fields[name].annotation):
        inner = get_args(part)[-1] if get_args(part) else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner
    return None


def _is_number(inner: Any) -> bool:
    return any(part in (int, float) for part in _parts(inner))


def _is_table(inner: Any) -> bool:
    is_class = isinstance(inner, type) and issubclass(inner, BaseModel)
    return inner is Any or get_origin(inner) is dict or is_class


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
