"""Measure engines in separate processes, in turns, so that noise affects all of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 2.0  # that one answer measures
STARTED = time.perf_counter()


def arguments(
    about: str,
    models: Sequence[str],
    engines: Sequence[str],
    usual: Sequence[str] | None = None,
) -> argparse.Namespace:
    """The command line of a benchmark; pins this process, and so its children, to `--pin`.

    `usual` are the engines that are measured unless others are asked for; None: all.
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(models)}")
    parser.add_argument("--engines", help=f"separated by commas, of {', '.join(engines)}")
    parser.add_argument("--rounds", type=int, default=5, help="answers of each engine (5)")
    parser.add_argument("--starts", type=int, default=3, help="first steps of each engine (3)")
    parser.add_argument("--pin", help="the cores to run on, separated by commas: 0,1")
    parser.add_argument("--output", type=Path, help="write the results to this file")
    given = parser.parse_args()
    if given.output is not None and not given.output.absolute().parent.is_dir():
        parser.error(f"there is no folder {given.output.parent} for --output")
    given.whole = not given.models and given.engines is None
    given.models = given.models or list(models)
    chosen = usual or engines
    given.engines = list(chosen) if given.engines is None else given.engines.split(",")
    for kind, asked, known in (("model", given.models, models), ("engine", given.engines, engines)):
        for name in asked:
            if name not in known:
                parser.error(f"no {kind} {name!r}: it must be one of {', '.join(known)}")
    if given.pin is not None:
        if not hasattr(os, "sched_setaffinity"):
            parser.error("this system has no --pin")
        os.sched_setaffinity(0, {int(core) for core in given.pin.split(",")})
    return given


def tell(line: str) -> None:
    """Show the progress on stderr, with the seconds since the start."""
    print(f"{time.perf_counter() - STARTED:6.0f} s  {line}", file=sys.stderr, flush=True)


class ChildFailed(Exception):
    """A child process ended; the message is the last line that it wrote."""


def start(script: str, *words: str) -> subprocess.Popen[str]:
    """Start a child process that runs `script one WORDS...`."""
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`stop` closes it)
    child = subprocess.Popen(
        [sys.executable, str(Path(script).resolve()), "one", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    child.stderr = errors  # a file, not a pipe: nothing reads it while the child runs
    return child


def read_line(child: subprocess.Popen[str]) -> str:
    """The next line that a child prints."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if line:
        return line.strip()
    child.wait()
    written: list[str] = []
    if child.stderr is not None:
        child.stderr.seek(0)
        written = [each.strip() for each in child.stderr if each.strip()]
    raise ChildFailed(written[-1] if written else f"it ended with {child.returncode}")


def race(children: Mapping[str, subprocess.Popen[str]], rounds: int) -> dict[str, list[Any]]:
    """Every child's answers, in turns; the first round is a warm-up and does not count."""
    answers: dict[str, list[Any]] = {name: [] for name in children}
    for _ in range(rounds + 1):
        for name, child in children.items():
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended: read_line says why
                child.stdin.write("go\n")
                child.stdin.flush()
            answers[name].append(json.loads(read_line(child)))
    for child in children.values():
        stop(child)
    return {name: given[1:] for name, given in answers.items()}


def stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def answer(step: Callable[[], Any], measure: Callable[[float], Any]) -> None:
    """In a child: for each line of input, `measure(the median of steps in milliseconds)`."""
    for _ in sys.stdin:
        times, deadline = [], time.perf_counter() + SECONDS
        while len(times) < 10 or time.perf_counter() < deadline:
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        print(json.dumps(measure(statistics.median(times) * 1e3)), flush=True)
