"""Race: every candidate is opened, checked and timed; the fastest few then take turns.

Several processes may race together, each with its own trials: a candidate is as fast as it is in
the slowest process, and excluded where any of them excludes it. So all processes have the same
figures, and decide alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from onward.errors import OptionError, ProviderError
from onward.measure.tuning.common_results import Gather, alone, run_together
from onward.measure.tuning.trials import CallTimes, Candidate, FirstRun
from onward.measure.tuning.tuning_options import TuningOptions
from onward.measure.tuning.tuning_result import Row
from onward.message_text import first_line
from onward.providers.choose import INDUCTOR, TORCH

ROUNDS = 4  # turns that the finalists take
FINALISTS = 3
MAX_RATIO = 1.5  # to the fastest: slower candidates do not reach the final
TOO_SLOW = 5.0  # torch this many times slower than the fastest: Inductor is not tried
TIE = 1.02  # within this ratio, the candidate listed first wins: results stay stable

Progress = Callable[[int, int, str], None]  # number done, total, current candidate
Finished = Callable[[Row], None]  # a candidate's figures, when it has been measured
Check = Callable[[Sequence[Any], Sequence[Any]], None]  # refuses outputs that are not as expected


class RacingTrial(Protocol):
    """A candidate in its own process; a context that ends it."""

    def __enter__(self) -> RacingTrial: ...

    def __exit__(self, *_: object) -> None: ...

    def open(self, timeout: float) -> FirstRun: ...

    def measure(self, seconds: float, *, timeout: float) -> CallTimes: ...

    def close(self) -> None: ...


def race(
    listed: Sequence[Candidate],
    make_trial: Callable[[Candidate], RacingTrial],
    check: Check,
    options: TuningOptions,
    progress: Progress = lambda *_: None,
    finished: Finished = lambda _: None,
    *,
    too_slow: float = TOO_SLOW,
    gather: Gather = alone,
) -> list[Row]:
    """Measure every candidate once, and the fastest ones several times in turns.

    `progress` gets the candidate that is tried next, `finished` each one's figures. Where torch is
    `too_slow` times slower than the fastest, Inductor is not tried. `gather` gives the values of
    all processes that race together.
    """

    def open_trial(trial: RacingTrial) -> FirstRun:
        opening = trial.open(timeout=options.limit)
        check(opening.outputs, opening.outputs if expected is None else expected)
        return opening

    def measure(trial: RacingTrial, seconds: float) -> CallTimes:
        """The times of the slowest process."""
        own = run_together(lambda: trial.measure(seconds, timeout=options.limit), gather)
        everyone: list[CallTimes] = gather(own)
        return max(everyone, key=lambda each: each.median)

    expected: list[Any] | None = None
    rows: dict[Candidate, Row] = {}
    racing: dict[Candidate, tuple[RacingTrial, list[float]]] = {}
    with ExitStack() as trials:
        for number, candidate in enumerate(listed):
            progress(number, len(listed) + 1, str(candidate))
            if _is_too_slow(candidate, rows.values(), too_slow):
                rows[candidate] = Row(candidate, error="not tried: torch is much slower")
                finished(rows[candidate])
                continue
            trial = trials.enter_context(make_trial(candidate))
            try:
                opening = run_together(functools.partial(open_trial, trial), gather)
                expected = opening.outputs if expected is None else expected
                measure(trial, options.seconds / 4)  # warm
                timing = measure(trial, options.seconds)
            except (ProviderError, OptionError) as error:
                rows[candidate] = Row(candidate, error=first_line(error))
                finished(rows[candidate])
                trial.close()
                continue
            first = max(gather(opening.seconds))
            rows[candidate] = _row(candidate, first, timing, timing.times)
            finished(rows[candidate])
            racing[candidate] = (trial, list(timing.times))
            _drop_the_slow(racing)
        progress(len(listed), len(listed) + 1, "the final")
        _final(racing, rows, options, measure)
    return _ranked(rows, listed)


def _row(candidate: Candidate, first: float, timing: CallTimes, times: Sequence[float]) -> Row:
    whole = CallTimes(list(times), timing.memory)
    return Row(candidate, whole.median, whole.p99, first, whole.memory)


def _is_too_slow(candidate: Candidate, rows: Iterable[Row], ratio: float) -> bool:
    """Whether a candidate is Inductor, which compiles for long, and torch itself is much slower."""
    if candidate.provider != INDUCTOR:
        return False
    done = {row.candidate: row.median for row in rows if not row.error}
    device = candidate.provider_options.get("device")
    return any(
        median > ratio * min(done.values())
        for eager, median in done.items()
        if eager.provider == TORCH and eager.provider_options.get("device") == device
    )


def _drop_the_slow(racing: dict[Candidate, tuple[RacingTrial, list[float]]]) -> None:
    """Close all trials but the fastest few: their processes take memory."""
    order = sorted(racing, key=lambda candidate: float(np.median(racing[candidate][1])))
    best = float(np.median(racing[order[0]][1]))
    for place, candidate in enumerate(order):
        if place >= FINALISTS or np.median(racing[candidate][1]) > MAX_RATIO * best:
            racing.pop(candidate)[0].close()


def _final(
    racing: dict[Candidate, tuple[RacingTrial, list[float]]],
    rows: dict[Candidate, Row],
    options: TuningOptions,
    measure: Callable[[RacingTrial, float], CallTimes],
) -> None:
    """Measure the finalists in turns; a single one has won already."""
    for _ in range(ROUNDS if len(racing) > 1 else 0):
        for candidate, (trial, times) in racing.items():
            try:
                timing = measure(trial, options.seconds)
            except ProviderError as error:
                rows[candidate] = Row(candidate, error=first_line(error))
                continue
            times += timing.times
            rows[candidate] = _row(candidate, rows[candidate].first, timing, times)


def _ranked(rows: Mapping[Candidate, Row], listed: Sequence[Candidate]) -> list[Row]:
    """The best first: of those that tie with the fastest, the one listed first."""
    good = sorted((row for row in rows.values() if not row.error), key=lambda row: row.median)
    bad = [row for row in rows.values() if row.error]
    if good:
        ties = [row for row in good if row.median <= TIE * good[0].median]
        best = min(ties, key=lambda row: listed.index(row.candidate))
        good.remove(best)
        good.insert(0, best)
    return [*good, *bad]
