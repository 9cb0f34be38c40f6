"""Check the options of a run, and end it at its time limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from onward.errors import OptionError, OptionTypeError
from onward.measure.memory.resident_memory import release_free_memory
from onward.providers.options import SessionOptions
from onward.sessions.plan import Plan
from onward.settings import is_named
from onward.workers.deadline import run_within, time_limit

T = TypeVar("T")


def run_limited(
    plan: Plan, options: SessionOptions, run_options: Any, run: Callable[[Any], T]
) -> T:
    """Return `run(options of the run)`, terminated at its deadline if there is one."""
    seconds = check_run_options(plan, options, run_options)
    if seconds is None:
        results = run(run_options)
    else:
        results = run_within(seconds, run_options, options.isolated, run)
    if getattr(run_options, "shrink_arena", False):
        release_free_memory()
    return results


def check_run_options(plan: Plan, options: SessionOptions, run_options: Any) -> float | None:
    """The time limit of a run in seconds, None without one; raises if its options do not fit."""
    if run_options is not None and not is_named(run_options, "RunOptions"):
        raise OptionTypeError(
            f"run_options must be a RunOptions, not {type(run_options).__name__}\n"
            "such as onward.RunOptions(timeout=1.0)"
        )
    if getattr(run_options, "active_adapters", ()) and plan.native is None:
        raise OptionError(
            "active adapters: onnxruntime does not run this model as a whole\n"
            "list only its providers: providers=['CPUExecutionProvider']"
        )
    seconds = time_limit(run_options, options)
    if seconds is not None:
        plan.ensure_ready()  # the time to start a process does not count
    return seconds
