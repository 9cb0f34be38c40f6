"""Fakes of training for the tests of sweeps: quadratic bowls over two settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from onward.runner.callback import Callback
from onward.runner.events import Evaluation
from onward.runner.sweep.sweep_trial import TrialResult

MONITOR = "val_loss"


def quadratic(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
    """Three evaluations that fall to (10 lr - 1)^2 + 0.1 if the optimizer is not adamw."""
    rate = settings.get("learning_rate") or 0.5
    end = (10 * rate - 1) ** 2 + (0.1 if settings.get("optimizer", "adamw") != "adamw" else 0)
    return _report(settings, callbacks, lambda number: end + 1 / number - 1 / 3)


def thread_count(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
    """The loss is the number of threads; the process dies with batch size 1."""
    if settings["batch_size"] == 1:
        os._exit(3)
    result = _report(settings, callbacks, lambda number: float(settings["threads"]))
    return TrialResult({**result.numbers, "process": float(os.getpid())}, MONITOR)


def endless(settings: dict[str, Any], callbacks: list[Callback]) -> TrialResult:
    """Steps until a callback stops it; a file says that it has begun."""
    open(os.path.join(os.path.dirname(settings["runs"]), f"begun-{os.getpid()}"), "w").close()
    run = _run()
    while not run.stopped:
        for each in callbacks:
            each.on_step(run, None)  # type: ignore[arg-type]
    return TrialResult({}, MONITOR, stopped=run.stopped)


def _report(
    settings: dict[str, Any], callbacks: list[Callback], loss: Callable[[int], float]
) -> TrialResult:
    run = _run()
    numbers: dict[str, float] = {}
    for number in (1, 2, 3):
        numbers = {MONITOR: loss(number)}
        for each in callbacks:
            each.on_evaluate(run, Evaluation(number, 0, numbers))
        if run.stopped:
            break
    folder = os.path.join(settings["runs"], settings["name"])
    return TrialResult(numbers, MONITOR, False, run.stopped or "finished", folder, run.step)


def _run() -> Any:
    """As much of a Run as callbacks use."""
    run = SimpleNamespace(stopped="", step=0)
    run.plan = SimpleNamespace(monitor=MONITOR, higher_is_better=False)
    run.stop = lambda reason: setattr(run, "stopped", run.stopped or reason)
    return run
