"""How often the numbers of a step are written: by setting, or so that files stay small."""

from __future__ import annotations

from onward.runner.run import Run

_LINES = 200  # of a run
_LONGEST = 50  # steps without a line


def is_logged(run: Run, step: int) -> bool:
    """Whether the numbers of a step are written."""
    every = run.config.log_every
    return step % (usual_interval(run.plan.steps) if every is None else every) == 0


def usual_interval(steps: int) -> int:
    """The number of steps between two lines of a run of so many steps.

    >>> usual_interval(90), usual_interval(2000), usual_interval(1_000_000)
    (1, 10, 50)
    """
    return min(max(steps // _LINES, 1), _LONGEST)
