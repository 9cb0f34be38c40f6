"""scripts/setup: the level that is installed, and when nothing is installed again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDER = '#!/bin/sh\ncase "$*" in *pip*) echo "$*" >>pip.log ;; esac\n'


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that setup reads, and a Python in .venv that records its calls of pip."""
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(RECORDER)
    python.chmod(0o755)
    return tmp_path


def installed(clone: Path, *levels: str) -> list[str]:
    """What pip was asked to install while setup ran for these levels."""
    (clone / "pip.log").write_text("")
    for level in levels:
        subprocess.run([clone / "scripts/setup", level], check=True, capture_output=True)
    return [line.split()[-1] for line in (clone / "pip.log").read_text().splitlines()]


def test_demo_installs_the_core_once(clone: Path) -> None:
    assert installed(clone, "demo", "demo") == ["."]


def test_all_is_installed_after_demo_and_includes_it(clone: Path) -> None:
    assert installed(clone, "demo", "all", "all", "demo") == [".", ".[dev]"]


def test_changed_constraints_are_installed(clone: Path) -> None:
    assert installed(clone, "all") == [".[dev]"]
    with (clone / "constraints.txt").open("a") as file:
        file.write("# another version\n")
    assert installed(clone, "demo") == ["."]


def test_unknown_level_is_an_error(clone: Path) -> None:
    done = subprocess.run([clone / "scripts/setup", "some"], capture_output=True, text=True)
    assert done.returncode == 1 and "unknown level 'some'" in done.stderr
