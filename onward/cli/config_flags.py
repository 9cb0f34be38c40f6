"""Flags of the command line made from the fields of TrainConfig.

def train(model, **given): ...
train = add_config_flags(train, leave_out=("model",))

`given_settings` then returns the settings of those flags that were given, as values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from onward.cli.arguments import complete_paths, complete_providers
from onward.errors import OptionError
from onward.runner.config import TrainConfig
from onward.runner.config_files import setting_group
from onward.runner.setting_text import (
    SettingKind,
    check_setting,
    read_mapping,
    read_setting,
    setting_kind,
)

_DATA_FILES = (".csv", ".npz", ".parquet", ".arrow", ".feather", ".jsonl", ".txt", ".tsv")

_SHOWN_CHOICES = 4  # behind a flag; more are listed in its explanation


def config_parameters(leave_out: Collection[str] = ()) -> list[inspect.Parameter]:
    """A keyword parameter for typer for each setting; None means that its flag was not given."""
    names = [name for name in TrainConfig.model_fields if name not in leave_out]
    return [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name)
        )
        for name in names
    ]


def add_config_flags(
    command: Callable[..., None], leave_out: Collection[str] = ()
) -> Callable[..., None]:
    """The command with its own parameters and the flags of the settings instead of `**given`."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    parameters = [*own, *config_parameters({*leave_out, *(each.name for each in own)})]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def given_settings(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The settings whose flags were given, as values of their fields.

    >>> given_settings({"epochs": "5", "flip": None, "freeze": ["a,b", "c"]})
    {'epochs': 5, 'freeze': ['a', 'b', 'c']}
    """
    return {name: _read(name, given) for name, given in keywords.items() if given is not None}


def flag_name(name: str) -> str:
    """
    >>> flag_name("learning_rate")
    '--learning-rate'
    """
    return f"--{name.replace('_', '-')}"


def _annotation(name: str) -> Any:
    kind, flag, default = (
        setting_kind(name),
        flag_name(name),
        TrainConfig.model_fields[name].default,
    )
    shown: dict[str, Any] = {
        "help": f"{TrainConfig.model_fields[name].description}{_choices_text(kind)}"
        f"{_default_text(default)}",
        "rich_help_panel": setting_group(name),
        "show_default": False,  # typer would put it in brackets and parentheses
    }
    if kind.is_bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(both, **shown)]
    shown |= {"metavar": _metavar(kind), "autocompletion": _completion(name, kind)}
    if kind.is_list or kind.is_mapping:
        return Annotated[list[str] | None, typer.Option(flag, **shown)]
    return Annotated[str | None, typer.Option(flag, **shown)]


def _read(name: str, given: Any) -> Any:
    """A flag's value: what typer has parsed, or text."""
    kind = setting_kind(name)
    try:
        if kind.is_mapping:
            return read_mapping(name, given)
        if kind.is_list:
            return check_setting(name, _read_list(name, given))
        return read_setting(name, given) if isinstance(given, str) else check_setting(name, given)
    except OptionError as error:
        raise OptionError(str(error).replace(name, flag_name(name), 1)) from None


def _read_list(name: str, texts: list[str]) -> Any:
    """Repeated and comma-separated names; a path of data may contain commas."""
    if setting_kind(name).is_text:
        return texts[0] if len(texts) == 1 else texts
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _metavar(kind: SettingKind) -> str:
    """What a flag takes, as help shows it."""
    if kind.is_mapping:
        return "NAME=COLUMN+..." if kind.lists_in_mapping else "NAME=TYPE"
    number = [{int: "N", float: "NUMBER"}[kind.number]] if kind.number is not None else []
    text = ["TEXT"] if (kind.is_text or kind.is_list) and not kind.choices else []
    if _choices_text(kind):
        return "NAME"
    return "|".join([*number, *text, *kind.choices])


def _choices_text(kind: SettingKind) -> str:
    """The names to choose from, where they are too many for the column of values."""
    return f" One of {', '.join(kind.choices)}." if len(kind.choices) > _SHOWN_CHOICES else ""


def _default_text(default: Any) -> str:
    """The default as the end of an explanation; empty where the explanation says it.

    >>> _default_text(0.1)
    ' Default: 0.1'
    """
    if default in (None, [], False, 0):
        return ""
    return f" Default: {','.join(default) if isinstance(default, list) else default}"


def _completion(name: str, kind: SettingKind) -> Callable[[str], list[str]]:
    if name in ("data", "validation"):
        return lambda incomplete: complete_paths(incomplete, _DATA_FILES)
    if name == "provider":
        return complete_providers
    return lambda incomplete: [each for each in kind.choices if each.startswith(incomplete)]
