"""The marker `sampled`: which cases of a table are in `make test`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLES = """
import pytest
from types import SimpleNamespace

sizes = pytest.mark.parametrize("size", [1, 2, 3])
colours = pytest.mark.parametrize("colour", ["red", "blue"])
cases = [SimpleNamespace(colour=each) for each in ("red", "red", "red", "blue")]

@pytest.mark.sampled("colour")
@sizes
@colours
def test_first(size, colour): pass

@pytest.mark.sampled("colour", last=True)
@sizes
@colours
def test_last(size, colour): pass

@pytest.mark.sampled("colour")
@pytest.mark.sampled("size")
@sizes
@colours
def test_union(size, colour): pass

@pytest.mark.sampled("case.colour")
@pytest.mark.parametrize("case", cases, ids="abcd")
def test_attribute(case): pass

@pytest.mark.sampled()
@sizes
def test_one(size): pass
"""
SAMPLE = """
test_first[red-1] test_first[blue-1]
test_last[red-1] test_last[red-3] test_last[blue-1] test_last[blue-3]
test_union[red-1] test_union[red-2] test_union[red-3] test_union[blue-1]
test_attribute[a] test_attribute[d]
test_one[1]
"""


def test_cases_outside_the_sample_are_marked_conformance(tmp_path: Path) -> None:
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_tables.py").write_text(TABLES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    sampled\n    conformance\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not conformance"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.removeprefix("test_tables.py::") for line in done.stdout.splitlines()]
    assert [line for line in lines if line.startswith("test_")] == SAMPLE.split()
    assert "13/25 tests collected (12 deselected)" in lines[-1]
