"""Start processes that have imported torch and Onward already.

Importing them takes seconds, which every process that a test starts would pay. A server, started
once for each worker of pytest, imports them and forks; it has no threads and never runs a model,
so each of its children is as new as one that was started from nothing.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import runpy
import sys
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent


@functools.cache
def forking_context() -> ForkServerContext | SpawnContext:
    """Where `Process` is a fork of the server; processes of other systems start from nothing."""
    if sys.platform != "linux":  # the frameworks of macOS do not survive a fork
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded_modules"])
    folder = Path.cwd()
    try:
        os.chdir(ROOT)  # where the server finds the tests
        forkserver.ensure_running()
    finally:
        os.chdir(folder)
    return context


def run_program(
    path: Path, *arguments: str, folder: Path, timeout: float = 600
) -> CompletedProcess[str]:
    """`python -W error path arguments` in a folder, and what it printed."""
    command = [str(path), *arguments]
    with TemporaryDirectory() as place:
        printed, errors = Path(place, "stdout"), Path(place, "stderr")
        printed.touch()
        errors.touch()
        given = (command, folder, dict(os.environ), printed, errors)
        process = forking_context().Process(target=_run_program, args=given)
        process.start()
        process.join(timeout)
        ended = process.exitcode is not None
        process.kill()
        process.join()
        assert ended, f"{path} ran longer than {timeout} s\n{errors.read_text()}"
        return CompletedProcess(
            command, process.exitcode or 0, printed.read_text(), errors.read_text()
        )


def _run_program(
    command: list[str], folder: Path, environment: dict[str, str], printed: Path, errors: Path
) -> None:
    import_module("tests.preloaded_modules")  # for a process that is no fork of the server
    for stream, path in ((sys.stdout, printed), (sys.stderr, errors)):
        with open(path, "w") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    sys.warnoptions.append("error")  # for processes that the program starts
    try:
        runpy.run_path(command[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a forked process calls none
