"""Flags of the command line made from the fields of settings classes.

def train(model, **given): ...
train = add_config_flags(train, TrainConfig, leave_out=("model",))

`given_settings(given, TrainConfig)` returns the values of the flags that were given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import typer

from onward.cli.arguments import complete_paths, complete_providers
from onward.configs.setting_kind import SettingKind, SettingsClass, setting_group, setting_kind
from onward.configs.setting_text import check_setting, read_list, read_mapping, read_setting
from onward.errors import OptionError

_DATA_FILES = (".csv", ".npz", ".parquet", ".arrow", ".feather", ".jsonl", ".txt", ".tsv")

_SHORTER = {"mixed_precision": ["--precision"]}  # other names of flags
_SHOWN_CHOICES = 4  # behind a flag; more are listed in its explanation


def config_parameters(
    settings: SettingsClass, leave_out: Collection[str] = ()
) -> list[inspect.Parameter]:
    """A keyword parameter for typer for each setting; None means that its flag was not given."""
    names = [name for name in settings.model_fields if name not in leave_out]
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(settings, name),
        )
        for name in names
    ]


def add_config_flags(
    command: Callable[..., None], *classes: SettingsClass, leave_out: Collection[str] = ()
) -> Callable[..., None]:
    """The command with its own parameters and the flags of the settings instead of `**given`."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    left_out = {*leave_out, *(each.name for each in own)}
    flags = [each for settings in classes for each in config_parameters(settings, left_out)]
    parameters = [*own, *flags]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def given_settings(keywords: Mapping[str, Any], *classes: SettingsClass) -> dict[str, Any]:
    """The settings whose flags were given, as values of their fields.

    >>> from onward.runner.config import TrainConfig
    >>> given_settings({"epochs": "5", "flip": None, "freeze": ["a,b", "c"]}, TrainConfig)
    {'epochs': 5, 'freeze': ['a', 'b', 'c']}
    """
    owners = {name: settings for settings in classes for name in settings.model_fields}
    return {
        name: _read(owners[name], name, given)
        for name, given in keywords.items()
        if given is not None
    }


def flag_name(name: str) -> str:
    """
    >>> flag_name("learning_rate")
    '--learning-rate'
    """
    return f"--{name.replace('_', '-')}"


def _annotation(settings: SettingsClass, name: str) -> Any:
    kind, flag, field = setting_kind(settings, name), flag_name(name), settings.model_fields[name]
    shown: dict[str, Any] = {
        "help": f"{field.description}{_choices_text(kind)}{_default_text(field.default)}",
        "rich_help_panel": setting_group(settings, name),
        "show_default": False,  # typer would put it in brackets and parentheses
    }
    if kind.is_bool:
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(both, **shown)]
    shown |= {"metavar": _metavar(kind), "autocompletion": _completion(name, kind)}
    if kind.is_list or kind.is_mapping:
        return Annotated[list[str] | None, typer.Option(flag, **shown)]
    return Annotated[str | None, typer.Option(flag, *_SHORTER.get(name, []), **shown)]


def _read(settings: SettingsClass, name: str, given: Any) -> Any:
    """A flag's value: what typer has parsed, or text."""
    kind = setting_kind(settings, name)
    try:
        if kind.is_mapping:
            return read_mapping(settings, name, given)
        if kind.is_list:
            return read_list(settings, name, given)
        read = read_setting if isinstance(given, str) else check_setting
        return read(settings, name, given)
    except OptionError as error:
        raise OptionError(str(error).replace(name, flag_name(name), 1)) from None


def _metavar(kind: SettingKind) -> str:
    """What a flag takes, as help shows it."""
    if kind.is_mapping or kind.has_tables:
        value = "JSON" if kind.has_tables else "COLUMN+..." if kind.lists_in_mapping else "VALUE"
        return f"NAME={value}" if kind.is_mapping else value
    if kind.numbers_in_list:
        return "N,..."
    number = [{int: "N", float: "NUMBER"}[kind.number]] if kind.number is not None else []
    plain = kind.is_list and (not kind.choices or kind.optional)
    text = ["TEXT"] if plain or (kind.is_text and not kind.choices) else []
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
    if default in (None, [], {}, False, 0) or isinstance(default, dict):
        return ""
    return f" Default: {','.join(default) if isinstance(default, list) else default}"


def _completion(name: str, kind: SettingKind) -> Callable[[str], list[str]]:
    if name in ("data", "validation"):
        return lambda incomplete: complete_paths(incomplete, _DATA_FILES)
    if name in ("provider", "providers"):
        return complete_providers
    return lambda incomplete: [each for each in kind.choices if each.startswith(incomplete)]
