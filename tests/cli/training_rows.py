"""A small table to train on: four numbers and one of three kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

GIVEN = ("m.onnx", "--data", "rows.csv", "--target", "kind", "--epochs", "2")
Edit = Callable[[list[str], int], list[str]]  # the fields of a row, and its number


def write_rows(
    path: str | Path,
    count: int = 60,
    edit: Edit = lambda fields, number: fields,
    header: str = "a,b,c,d,kind",
) -> None:
    """Write a CSV file; `edit` changes rows."""
    rng = np.random.default_rng(0)
    lines = [header]
    for number in range(count):
        values = rng.normal(size=4)
        kind = "xyz"[number % 3]
        lines.append(",".join(edit([*(f"{each:.3f}" for each in values), kind], number)))
    Path(path).write_text("\n".join(lines) + "\n")
