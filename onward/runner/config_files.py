"""Config files: settings of a run from TOML or YAML, and a config as TOML with explanations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from onward.configs.check_settings import changed_settings
from onward.configs.setting_kind import setting_group
from onward.configs.settings_files import read_settings_file, toml_value
from onward.errors import OptionError
from onward.runner.config import TrainConfig, make_config

_LINE = 76  # columns of a comment's text


def read_config(path: str | Path, tables: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a .toml, .yaml or .yml file, checked.

    `tables` are names that are allowed in addition to the settings; their contents are not
    checked. An error names the file and the line.
    """
    file = read_settings_file(path)
    for name, value in file.values.items():
        if name in tables:
            continue
        try:
            make_config({str(name): value})
        except OptionError as error:
            raise OptionError(f"{file.place(str(name))}: {error}") from None
    return file.values


def config_to_toml(config: TrainConfig, everything: bool = False) -> str:
    """A config as TOML that reads back as the same config.

    Only the settings that are not the default; with `everything`, the others follow in their
    groups, and each has its explanation as a comment.

    >>> print(config_to_toml(make_config(epochs=5, optimizer="sgd")), end="")
    epochs = 5
    optimizer = "sgd"
    """
    changed = changed_settings(config)
    if not everything:
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in changed.items())
    parts = [_explained("Changed", changed)] if changed else []
    groups: dict[str, dict[str, Any]] = {}
    for name in TrainConfig.model_fields:
        if name not in changed:
            groups.setdefault(setting_group(TrainConfig, name), {})[name] = getattr(config, name)
    parts += [_explained(f"{group} (defaults)", found) for group, found in groups.items()]
    return "\n".join(parts)


def _explained(title: str, settings: Mapping[str, Any]) -> str:
    lines = [f"# -- {title} {'-' * max(_LINE - len(title), 3)}"]
    for name, value in settings.items():
        lines.append(f"# {TrainConfig.model_fields[name].description}")
        # TOML has no null: a setting without a value is a comment
        lines.append(f"# {name} =" if value is None else f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"
