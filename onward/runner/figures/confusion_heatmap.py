"""A confusion matrix as a picture: cells colored by share, counts, names of classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import OptionError
from onward.runner.figures.figure import TEXT, Box, Figure, Mark, Words, shorten, text_width
from onward.runner.metrics.confusion_matrix import row_shares

_SIDE = 720.0  # of the matrix, where its cells are large enough
_CELL = (18.0, 72.0)  # least and greatest side of a cell
_PALE, _DARK = (0xF7, 0xF8, 0xFA), (0x1F, 0x4B, 0xA8)  # the colors of shares of 0 and 1
_LONGEST_NAME = 20
_SMALLEST_COUNT = 7.0  # font size below which counts are left out


def draw_confusion(counts: ArrayLike, names: Sequence[str]) -> Figure:
    """A confusion matrix: labels down, answers across, colored by the share of the label's rows.

    A cell has its count, and its share where there is room; both are shown under the mouse.

    >>> figure = draw_confusion([[8, 2], [1, 9]], ["cat", "dog"])
    >>> [mark.tip for mark in figure.marks if isinstance(mark, Box)][1]
    'cat taken for dog: 2 (20.0%)'
    """
    matrix = np.asarray(counts, np.float64)
    if matrix.shape != (len(names), len(names)):
        raise OptionError(
            f"a confusion matrix of {len(names)} classes has shape [{len(names)}, {len(names)}], "
            f"not {list(matrix.shape)}\ngive one name per class"
        )
    cell = min(max(_SIDE / max(len(names), 1), _CELL[0]), _CELL[1])
    size = min(cell * 0.6, 14.0)  # of the names
    shown = [shorten(name, _LONGEST_NAME) for name in names]
    margin = max((text_width(name, size) for name in shown), default=0.0) + 50
    side = cell * len(names)
    marks: list[Mark] = [
        Words((margin + side / 2, 26), "answer", TEXT, "middle"),
        Words((26, margin + side / 2), "label", TEXT, "middle", upright=True),
    ]
    for i, name in enumerate(shown):
        middle = margin + cell * (i + 0.5) + size * 0.35
        marks.append(Words((margin - 6, middle), name, TEXT, "end", size))
        marks.append(Words((middle, margin - 6), name, TEXT, "start", size, upright=True))
    marks += _cells(matrix, names, margin, cell)
    page = margin + side + 24
    return Figure(max(page, 240), max(page, 240), marks)


def _cells(
    matrix: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    names: Sequence[str],
    margin: float,
    cell: float,
) -> Iterator[Mark]:
    shares = row_shares(matrix)
    counts = [[_format_count(count) for count in row] for row in matrix.tolist()]
    longest = max((len(count) for row in counts for count in row), default=1)
    size = min(cell * 0.5, 15.0, 0.9 * cell / text_width("0" * longest, 1.0))
    with_shares = cell >= 44
    for i, j in np.ndindex(*matrix.shape):
        share, count = float(shares[i, j]), counts[i][j]
        x, y = margin + cell * j, margin + cell * i
        relation = "right" if i == j else f"taken for {names[j]}"
        tip = f"{names[i]} {relation}: {count} ({100 * share:.1f}%)"
        empty = matrix[i, j] == 0
        yield Box((x, y), (cell - 1, cell - 1), _shade(share), "" if empty else tip)
        if empty or size < _SMALLEST_COUNT:
            continue
        color = "#ffffff" if share > 0.5 else TEXT
        middle = x + (cell - 1) / 2
        lift = 2.0 if with_shares else -size * 0.35
        yield Words((middle, y + cell / 2 - lift), count, color, "middle", size)
        if with_shares:
            at = (middle, y + cell / 2 + size)
            yield Words(at, f"{100 * share:.1f}%", color, "middle", size * 0.75)


def _shade(share: float) -> str:
    """From pale to dark; small shares are lifted, so that few mistakes are visible."""
    strength = share**0.6
    mixed = (pale + (dark - pale) * strength for pale, dark in zip(_PALE, _DARK))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _format_count(count: float) -> str:
    return f"{count:.0f}" if count == int(count) else f"{count:.3g}"
