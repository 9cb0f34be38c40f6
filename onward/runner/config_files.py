"""Config files: settings of a run from TOML or YAML, and a config as TOML with explanations."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from onward.errors import OptionError, PackageMissing
from onward.graph.paths import check_exists, to_path
from onward.runner.config import TrainConfig, changed_settings, make_config

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")
_LINE = 76  # columns of a comment's text


def read_config(path: str | Path, tables: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a .toml, .yaml or .yml file, checked.

    `tables` are names that are allowed in addition to the settings; their contents are not
    checked. An error names the file and the line.
    """
    file = to_path(path)
    check_exists(file, "config")
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise OptionError(f"{file} is not a config\ngive a .toml, .yaml or .yml file")
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"{file} is not UTF-8 text: {error.reason}") from None
    found = _read_toml(file, text) if file.suffix == ".toml" else _read_yaml(file, text)
    for name, value in found.items():
        if name in tables:
            continue
        try:
            make_config({str(name): value})
        except OptionError as error:
            raise OptionError(f"{_place(file, text, str(name))}: {error}") from None
    return found


def _read_toml(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _TOML_PLACE.search(message)
        line = (place[1] if place else None) or str(len(text.splitlines()))
        raise OptionError(f"{file}, line {line}: {_TOML_PLACE.sub('', message)}") from None


def _read_yaml(file: Path, text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise PackageMissing(
            f"{file} is read with pyyaml, which is not installed\n"
            "install it with: pip install 'onward[train]', or write the config as .toml"
        ) from None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise OptionError(f"{file}{line}: {what}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise OptionError(f"{file} has no settings\nwrite one per line, such as epochs: 5")
    return {str(name): value for name, value in found.items()}


def _place(file: Path, text: str, name: str) -> str:
    """The file, and the line where a setting is given."""
    key = re.compile(rf"""\s*\[?\s*["']?{re.escape(name)}["']?\s*[].=:]""")
    numbers = [n for n, line in enumerate(text.splitlines(), 1) if key.match(line)]
    return f"{file}, line {numbers[0]}" if numbers else str(file)


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
            groups.setdefault(setting_group(name), {})[name] = getattr(config, name)
    parts += [_explained(f"{group} (defaults)", found) for group, found in groups.items()]
    return "\n".join(parts)


def setting_group(name: str) -> str:
    """The heading of a setting in the help."""
    extra = TrainConfig.model_fields[name].json_schema_extra
    return str(extra["group"]) if isinstance(extra, dict) else "Run"


def _explained(title: str, settings: Mapping[str, Any]) -> str:
    lines = [f"# -- {title} {'-' * max(_LINE - len(title), 3)}"]
    for name, value in settings.items():
        lines.append(f"# {TrainConfig.model_fields[name].description}")
        # TOML has no null: a setting without a value is a comment
        lines.append(f"# {name} =" if value is None else f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value in TOML, on one line.

    >>> toml_value({"a b": ["x", 'say "y"'], "n": 1e-05})
    '{"a b" = ["x", "say \\\\"y\\\\""], n = 1e-05}'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    return _toml_text(str(value))


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        key = name if _BARE.fullmatch(name) else _toml_text(name)
        yield f"{key} = {toml_value(value)}"


def _toml_text(text: str) -> str:
    """JSON's escapes are TOML's, too, but for the delete character, which TOML escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
