"""Files of settings: the line of a setting inside of a table, and keys as TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from onward.configs.settings_files import read_settings_file, toml_key

TEXT = """a = 1
[models.one]
b = 1
[models."two x"]
b = 2
c = {d = 1}
"""


@pytest.mark.parametrize(
    ("name", "after", "line"),
    [("a", "", 1), ("b", "one", 3), ("b", "two x", 5), ("c", "two x", 6), ("models", "", 2)],
)
def test_line_of_a_setting_is_found(tmp_path: Path, name: str, after: str, line: int) -> None:
    (tmp_path / "s.toml").write_text(TEXT)
    file = read_settings_file(tmp_path / "s.toml")
    assert file.place(name, after) == f"{file.path}, line {line}"
    assert file.place("missing", after) == str(file.path)


@pytest.mark.parametrize("name", ["a", "a-b_1", "a b", "a.b", 'say "x"', "\x7f", ""])
def test_any_key_is_valid_toml(name: str) -> None:
    assert tomllib.loads(f"{toml_key(name)} = 1") == {name: 1}
