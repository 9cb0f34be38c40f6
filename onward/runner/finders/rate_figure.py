"""Draw a search of the learning rate: losses over rates, and the rate that is suggested."""

from __future__ import annotations

import math

from onward.runner.figures.axes import Frame, ticks
from onward.runner.figures.figure import COLORS, Dot, Figure, Line, Mark, Words
from onward.runner.finders.learning_rate import RateSearch

_WIDTH, _HEIGHT = 960.0, 420.0


def draw_rate_search(search: RateSearch) -> Figure:
    """The losses (pale), their running average, and the suggestion as a dashed line.

    >>> from onward.runner.finders.learning_rate import suggest_rate
    >>> search = suggest_rate([(10.0**i, 2.0 - i / 9) for i in range(-8, 1)])
    >>> [mark.text for mark in draw_rate_search(search).marks if isinstance(mark, Words)][0]
    'learning rate: 1 (the loss falls fastest)'
    """
    finite = [(math.log10(rate), loss) for rate, loss in search.points if math.isfinite(loss)]
    low, high = min(search.smoothed), max(search.smoothed[0], *search.smoothed[:-1])
    marked = ticks(low, high)
    y_range = (min(marked[0], low), max(marked[-1], high))
    at = math.log10(search.suggestion)
    x_range = (min(finite[0][0], at), max(finite[-1][0], at))
    frame = Frame(80, _WIDTH - 30, 50, _HEIGHT - 56, x_range, y_range, powers=True)
    marks: list[Mark] = [
        Words((80, 30), f"learning rate: {search.suggestion:.2g} ({search.reason})"),
        *frame.draw("learning rate"),
        Line([frame.place(*point) for point in finite], COLORS[0], 1.0, 0.4),
    ]
    averages = [(x, loss) for (x, _), loss in zip(finite, search.smoothed)]
    marks.append(Line([frame.place(*point) for point in averages], COLORS[0], 2.2, name="loss"))
    chosen = [frame.place(at, y_range[0]), frame.place(at, y_range[1])]
    marks.append(Line(chosen, COLORS[1], 1.6, dashed=True, name="suggestion"))
    nearest = min(averages, key=lambda point: abs(point[0] - at))
    marks.append(Dot(frame.place(*nearest), 5.0, COLORS[1]))
    return Figure(_WIDTH, _HEIGHT, marks)
