"""Fixtures of the command line's tests: a call of `main` in this process, and sample files."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import onward
from onward.cli.main import main
from tests.models import mlp


@dataclass(frozen=True)
class Called:
    """The output and exit code of a call."""

    code: int
    out: str
    err: str


Call = Callable[..., Called]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command line as the shell would, in this process."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["onward", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        return Called(int(exit_.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x (batch, 4) -> y (batch, 2), as a file."""
    onward.save(mlp(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def is_one_line(called: Called, *words: str) -> bool:
    """Whether an error for bad input has exit code 2 and one line with these words."""
    assert called.code == 2, called
    assert called.err.count("\n") == 1 and "Traceback" not in called.err, called.err
    assert all(word in called.err for word in words), called.err
    return True
