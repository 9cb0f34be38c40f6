"""Programs that start as forks of a server behave as `python -W error` does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.forked_processes import forking_context, run_program


def write(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def test_a_program_gets_its_arguments_folder_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_GIVEN", "a value")
    text = "import os, sys\nprint(__name__, sys.argv[1:], os.getcwd(), os.environ['ONWARD_GIVEN'])"
    done = run_program(write(tmp_path, text), "--steps", "2", folder=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == f"__main__ ['--steps', '2'] {tmp_path} a value\n"


@pytest.mark.parametrize(
    ("text", "code", "errors"),
    [
        ("import sys\nsys.exit('no file')", 1, "no file\n"),
        ("import sys\nsys.exit(3)", 3, ""),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("import warnings\nwarnings.warn('old', DeprecationWarning)", 1, "DeprecationWarning: old"),
        ("import atexit\natexit.register(lambda: print(1 / 0))", 0, "ZeroDivisionError"),
    ],
    ids=["message", "code", "error", "warning", "exit function"],
)
def test_a_program_ends_as_in_a_process_of_its_own(
    tmp_path: Path, text: str, code: int, errors: str
) -> None:
    done = run_program(write(tmp_path, text), folder=tmp_path)
    assert done.returncode == code and errors in done.stderr


@pytest.mark.integration
def test_a_program_that_does_not_end_is_killed(tmp_path: Path) -> None:
    path = write(tmp_path, "import threading\nthreading.Event().wait()")
    with pytest.raises(AssertionError, match=r"program\.py ran longer than 1 s"):
        run_program(path, folder=tmp_path, timeout=1)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems start each process from nothing")
def test_a_process_has_the_modules_already(tmp_path: Path) -> None:
    assert forking_context().get_start_method() == "forkserver"
    text = "import sys\nprint('onward.runner.train' in sys.modules)"
    assert run_program(write(tmp_path, text), folder=tmp_path).stdout == "True\n"
