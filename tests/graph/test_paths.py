"""Paths: what is none is refused before a system call meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import onward
from onward.errors import OptionError
from onward.graph.paths import to_path
from onward.losses import CrossEntropy
from onward.optimizers import SGD
from onward.sessions.checkpoint import files
from tests.sessions.training.small import mlp

LAW = r"a path is a text without null characters, or a Path, not .*\ngive the name of a file or of"
each_bad = pytest.mark.parametrize("bad", ["\0bad", Path("a\0b"), 3, None, b"name"])


def test_texts_and_paths_are_paths() -> None:
    assert to_path("a/b") == to_path(Path("a/b")) == Path("a/b")


@each_bad
def test_what_is_no_path_is_refused(bad: Any) -> None:
    with pytest.raises(OptionError, match=LAW):
        to_path(bad)


@each_bad
def test_nothing_that_saves_or_loads_takes_it(bad: Any) -> None:
    program = onward.compile_training(mlp(), CrossEntropy(), SGD())
    session = onward.TrainingSession(program)
    for call in (session.save, session.load, session.export, program.save, files.look):
        with pytest.raises(OptionError, match=LAW):
            call(bad)
    with pytest.raises(OptionError, match=LAW):
        onward.Checkpoints(bad)
