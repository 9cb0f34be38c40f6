"""The suffix of a path decides how a figure is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import OptionError, WriteFailed
from onward.runner.figures.figure import Figure
from onward.runner.figures.save import save_figure

EMPTY = Figure(8, 8, [])


def test_the_suffix_is_the_format(tmp_path: Path) -> None:
    save_figure(EMPTY, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text("utf-8").startswith("<svg")
    pytest.importorskip("PIL")
    save_figure(EMPTY, str(tmp_path / "a.PNG"))
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["a.pdf", "a"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"cannot be written as .*\n.*one of '.svg', '.png'"):
        save_figure(EMPTY, tmp_path / name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteFailed, match="there is no folder"):
        save_figure(EMPTY, tmp_path / "missing" / "a.svg")
