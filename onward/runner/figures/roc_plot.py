"""ROC curves: true positives against false positives, at each threshold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import cycle

import numpy as np
from numpy.typing import ArrayLike

from onward.runner.figures.axes import Frame
from onward.runner.figures.curves import thin
from onward.runner.figures.figure import AXIS, COLORS, TEXT, Figure, Line, Mark, Words, shorten


def draw_roc(curves: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """One curve per name: false and true positive rates, as AUC.curve and roc_points give them.

    >>> figure = draw_roc({"AUC 0.75": ([0, 0, 0.5, 0.5, 1], [0, 0.5, 0.5, 1, 1])})
    >>> figure.width
    640.0
    """
    frame = Frame(80.0, 600.0, 30.0, 550.0, (0.0, 1.0), (0.0, 1.0))
    marks: list[Mark] = [
        *frame.draw("false positive rate"),
        Words((24.0, 290.0), "true positive rate", TEXT, "middle", 13.0, upright=True),
        Line([frame.place(0, 0), frame.place(1, 1)], AXIS, 1.5, dashed=True),
    ]
    for i, ((name, (fpr, tpr)), color) in enumerate(zip(curves.items(), cycle(COLORS))):
        pairs = zip(_listed(fpr), _listed(tpr))  # NaN if all labels are equal: no curve
        points = thin([pair for pair in pairs if all(map(math.isfinite, pair))])
        marks.append(Line([frame.place(*point) for point in points], color, 2.4, name=name))
        y = 530.0 - 24 * (len(curves) - 1 - i)  # below the diagonal, where few curves are
        marks.append(Line([(330, y - 5), (358, y - 5)], color, 4.0))
        marks.append(Words((366, y), shorten(name, 26), TEXT))
    return Figure(640.0, 610.0, marks)


def _listed(numbers: ArrayLike) -> list[float]:
    listed: list[float] = np.asarray(numbers, np.float64).tolist()
    return listed
