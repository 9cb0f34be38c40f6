"""Measure engines in separate processes, in turns, so that noise affects all of them."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SECONDS = 2.0  # that one answer measures


def start(script: str, *words: str) -> subprocess.Popen[str]:
    """Start a child process that runs `script one WORDS...`."""
    return subprocess.Popen(
        [sys.executable, str(Path(script).resolve()), "one", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def race(children: Mapping[str, subprocess.Popen[str]], rounds: int) -> dict[str, list[Any]]:
    """Every child's answers, in turns; the first round is a warm-up and does not count."""
    answers: dict[str, list[Any]] = {name: [] for name in children}
    for _ in range(rounds + 1):
        for name, child in children.items():
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            answers[name].append(json.loads(child.stdout.readline()))
    for child in children.values():
        stop(child)
    return {name: given[1:] for name, given in answers.items()}


def stop(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def answer(step: Callable[[], Any], measure: Callable[[float], Any]) -> None:
    """In a child: for each line of input, `measure(the median of steps in milliseconds)`."""
    for _ in sys.stdin:
        times, deadline = [], time.perf_counter() + SECONDS
        while len(times) < 10 or time.perf_counter() < deadline:
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        print(json.dumps(measure(statistics.median(times) * 1e3)), flush=True)
