"""Files of settings: TOML and YAML as dictionaries, the line of a setting, and values as TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onward.errors import OptionError, PackageMissing
from onward.graph.paths import check_exists, to_path

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True)
class SettingsFile:
    """The values of a file of settings, not checked yet."""

    path: Path
    text: str
    values: dict[str, Any]

    def place(self, name: str, after: str = "") -> str:
        """The file, and the line where a setting is given; `after`: the table that it is in."""
        lines = list(enumerate(self.text.splitlines(), 1))
        if after:
            begin = next((n for n, line in lines if _names(after).search(line)), 0)
            inside = [(n, line) for n, line in lines if n >= begin and _names(name).search(line)]
            return f"{self.path}, line {inside[0][0]}" if inside else str(self.path)
        key = re.compile(rf"""\s*\[?\s*["']?{re.escape(name)}["']?\s*[].=:]""")
        numbers = [n for n, line in lines if key.match(line)]
        return f"{self.path}, line {numbers[0]}" if numbers else str(self.path)


def read_settings_file(path: str | Path) -> SettingsFile:
    """The values of a .toml, .yaml or .yml file; an error names the file and the line."""
    file = to_path(path)
    check_exists(file, "config")
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise OptionError(f"{file} is not a config\ngive a .toml, .yaml or .yml file")
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"{file} is not UTF-8 text: {error.reason}") from None
    found = _read_toml(file, text) if file.suffix == ".toml" else _read_yaml(file, text)
    return SettingsFile(file, text, found)


def _names(name: str) -> re.Pattern[str]:
    """A line in which a key, or a part of a table's heading, has this name."""
    return re.compile(rf"""(?:^|[\s.\[{{,"'])["']?{re.escape(name)}["']?\s*[].=:]""")


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


def toml_key(name: str) -> str:
    """A key in TOML, quoted if it must be."""
    return name if _BARE.fullmatch(name) else _toml_text(name)


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        yield f"{toml_key(name)} = {toml_value(value)}"


def _toml_text(text: str) -> str:
    """JSON's escapes are TOML's, too, but for the delete character, which TOML escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
