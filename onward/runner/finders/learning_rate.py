"""Find a learning rate by a range test: train while it grows, and watch the loss.

    search = find_learning_rate(lambda: TrainingSession(model, loss, optimizer), batches)
    optimizer = AdamW(lr=search.suggestion)

Leslie Smith, Cyclical Learning Rates for Training Neural Networks (2017). The suggestion is the
rate at which the smoothed loss falls fastest, once it is lower than batches differ; where it never
falls, a tenth of the rate at its lowest point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.errors import OptionError
from onward.programs.program import LOSS
from onward.runner.figures.curves import smooth
from onward.sessions.training.session import TrainingSession
from onward.settings import above, integer

Feeds = Mapping[str, Any]

_FEWEST = 8  # points that a suggestion needs
_DIVERGED = 3.0  # times the fall of the loss, or the loss itself, above its lowest point
_LEAST_FALL = 0.01  # of the loss: less is noise
_FIRST = 8  # the first eighth of the points gives the loss before it falls, and its noise
_NOISE = 0.2  # of the fall: the loss has not begun to fall before it is lower than this


@dataclass(frozen=True)
class RateSearch:
    """The losses at growing learning rates, and the rate to train with.

    Attributes:
        points: (learning rate, loss) of each update
        smoothed: the running averages of the losses
        suggestion: the learning rate
        reason: what it was chosen by
    """

    points: tuple[tuple[float, float], ...]
    smoothed: tuple[float, ...]
    suggestion: float
    reason: str


def find_learning_rate(
    make_session: Callable[[], TrainingSession],
    batches: Iterable[Feeds],
    *,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 100,
) -> RateSearch:
    """Train a session of its own at learning rates from `lowest` to `highest`, and suggest one.

    The search ends early where the loss diverges. The session is closed; nothing else changes.

    Args:
        make_session: opens a session as the run will, without a schedule
        batches: feeds of its steps; a list, or what can be iterated over again, is repeated
        lowest: the first learning rate
        highest: the last one
        steps: the number of updates between them
    """
    lowest, highest = above(0.0)("lowest", lowest), above(0.0)("highest", highest)
    steps = integer(_FEWEST)("steps", steps)
    if lowest >= highest:
        raise OptionError(
            f"lowest is {lowest:g}, which is not below highest, {highest:g}\n"
            "give a range, such as lowest=1e-7, highest=10"
        )
    rates = np.geomspace(lowest, highest, steps).tolist()
    points: list[tuple[float, float]] = []
    with make_session() as session:
        settings = session.program.settings
        if settings.schedule is not None:
            raise OptionError(
                "make_session opens a session with a schedule, which changes the learning rate\n"
                "leave TrainingOptions.schedule out for the search"
            )
        feeds = _repeated(batches)
        for rate in rates:
            session.set_learning_rate(rate)
            batch = itertools.islice(feeds, settings.accumulate)
            losses = [float(session.step(each)[LOSS]) for each in batch]
            if len(losses) < settings.accumulate:
                break  # the batches have ended
            points.append((rate, sum(losses) / len(losses)))
            if session.skipped_steps or _has_diverged([loss for _, loss in points]):
                break
    return suggest_rate(points)


def suggest_rate(points: Sequence[tuple[float, float]]) -> RateSearch:
    """The learning rate at which the smoothed loss falls fastest.

    Args:
        points: (learning rate, loss), the rates growing by a constant factor

    >>> losses = [2.0] * 10 + [1.8, 1.2, 0.6, 0.5, 0.5, 3.0]
    >>> search = suggest_rate([(10.0 ** (i / 2 - 7), y) for i, y in enumerate(losses)])
    >>> f"{search.suggestion:.0e}", search.reason
    ('1e-01', 'the loss falls fastest')
    """
    finite = [(rate, loss) for rate, loss in points if math.isfinite(loss)]
    if len(finite) < _FEWEST:
        raise OptionError(
            f"the loss was finite at {len(finite)} learning rates, fewer than {_FEWEST}: "
            "none can be suggested\ngive more batches, or a smaller `lowest`"
        )
    rates, smoothed = [rate for rate, _ in finite], smooth(loss for _, loss in finite)
    bottom = int(np.argmin(smoothed))
    first = [loss for _, loss in finite[: max(len(finite) // _FIRST, 1)]]
    before = float(np.mean(first))  # of different batches, so that they differ by noise
    falls = before - smoothed[bottom]
    if falls > max(_LEAST_FALL * abs(before), float(np.std(first)) / 2):
        high = np.flatnonzero(np.array(smoothed[:bottom]) > before - _NOISE * falls)
        begin = int(high[-1]) if len(high) else 0  # slopes before it are noise
        slopes = np.gradient(smoothed)[begin : bottom + 1]
        best, reason = rates[begin + int(np.argmin(slopes))], "the loss falls fastest"
    else:
        best, reason = rates[bottom] / 10, "a tenth of the rate of the lowest loss"
    return RateSearch(tuple(points), tuple(smoothed), best, reason)


def _has_diverged(losses: Sequence[float]) -> bool:
    if not math.isfinite(losses[-1]):
        return True
    averages = smooth(losses)
    lowest = min(averages)
    size = max(abs(lowest), averages[0] - lowest)
    return averages[-1] > lowest + _DIVERGED * size


def _repeated(batches: Iterable[Feeds]) -> Iterator[Feeds]:
    """The batches again and again; once, if they are an iterator."""
    is_once = iter(batches) is batches
    while True:
        batch = None
        for batch in batches:
            yield batch
        if is_once or batch is None:
            return
