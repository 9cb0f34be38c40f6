"""What the library advises in Python, said as options of the command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from onward.cli.option_hints import translate_hints
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
def test_hint_becomes_what_one_types(message: str, typed: str) -> None:
    assert translate_hints(message) == typed


def test_no_hint_of_the_library_comes_out_as_python() -> None:
    """Every second line of every error in the package, with its names filled in."""
    hints = [hint for path in PACKAGE.rglob("*.py") for hint in hints_of(path)]
    assert len(hints) > 50
    for hint in hints:
        shown = translate_hints(f"what is wrong\n{hint}")
        assert not re.search(r"\w=[\[{(]|@\w|\w\(|(Options|Limits)\.", shown), shown


def hints_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            found += spelled(node.exc.args[0]).split("\n")[1:]
    return found


def spelled(node: ast.expr) -> str:
    """A message as it would be printed, `name` in place of every value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(spelled(part) if isinstance(part, ast.Constant) else "name" for part in parts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grad", "MODEL", "--wrt", "x"], "--output y=y_cotangent"),
        (["grad", "MODEL", "--wrt", "x", "--output", "y=x"], "--output y=y_cotangent"),
        (["run", "MODEL", "--random", "-p", "auto", "-p", "cpu"], "give --provider auto alone"),
    ],
)
def test_command_prints_hints_that_can_be_typed(
    call: Call, model: Path, arguments: list[str], words: str
) -> None:
    called = call(*(model if argument == "MODEL" else argument for argument in arguments))
    assert is_one_line(called, words) and "={" not in called.err
