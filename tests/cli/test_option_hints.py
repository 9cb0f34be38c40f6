"""Hints of the library, translated to options of the command line."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from onward.cli.option_hints import _TRANSLATIONS, translate_hints
from tests.cli.conftest import Call, is_one_line

PACKAGE = Path(__file__).parents[2] / "onward"


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        (
            'a\ngive it another name: outputs={"y": "dy"}',
            "a\ngive it another name: --output y=dy",
        ),
        ("a\nraise SessionOptions.open_timeout", "a"),
        ("a\ndid you mean 'Conv.weight'?", "a\ndid you mean 'Conv.weight'?"),
        ("a\ninstall it with: pip install onward[torch]",) * 2,
        ("one line", "one line"),
        ("", ""),
    ],
)
def test_hint_is_translated_to_options(message: str, typed: str) -> None:
    assert translate_hints(message) == typed


@pytest.mark.integration
def test_no_hint_of_the_library_is_printed_as_python() -> None:
    """Every second line of every error in the package, with its names filled in."""
    hints = [hint for path in PACKAGE.rglob("*.py") for hint in hints_of(path)]
    assert len(hints) > 50
    for hint in hints:
        shown = translate_hints(f"an error\n{hint}")
        assert not re.search(r"\w=[\[{(]|@\w|\w\(|(Options|Limits)\.", shown), shown


@pytest.mark.integration
@pytest.mark.parametrize("pattern", _TRANSLATIONS)
def test_every_translated_hint_is_in_the_library(pattern: str) -> None:
    assert any(re.fullmatch(pattern, line) for line in library_lines())


@functools.cache
def library_lines() -> frozenset[str]:
    """Every line of every string in the package, without the command line."""
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "cli"]
    nodes = (node for path in paths for node in nodes_of(path))
    strings = (node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr))
    return frozenset(line for node in strings for line in spell_message(node).split("\n"))


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def hints_of(path: Path) -> list[str]:
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            found += spell_message(node.exc.args[0]).split("\n")[1:]
    return found


def spell_message(node: ast.expr) -> str:
    """A message as printed, with `name` for every value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(
        spell_message(part) if isinstance(part, ast.Constant) else "name" for part in parts
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grad", "MODEL", "--wrt", "x"], "--output y=y_cotangent"),
        (["grad", "MODEL", "--wrt", "x", "--output", "y=x"], "--output y=y_cotangent"),
        (["run", "MODEL", "--random", "-p", "auto", "-p", "cpu"], "give only --provider auto"),
    ],
)
def test_command_prints_hints_as_options(
    call: Call, model: Path, arguments: list[str], words: str
) -> None:
    called = call(*(model if argument == "MODEL" else argument for argument in arguments))
    assert is_one_line(called, words) and "={" not in called.err
