"""Cases of rules/cut.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal


def cut(feed: Any, note: str, *inputs: Any, **ways: Any) -> list[Case]:
    """With what is cut known, and fed."""
    names = ("starts", "ends", "axes", "steps")[: len(inputs)]
    fed = dict(zip(names, (np.array(each) for each in inputs)))

    def build(op: Any, x: Any, **given: Any) -> Any:
        return op.Slice(x, *(given[name] for name in names))

    known = Case("Slice", lambda op, x: op.Slice(x, *inputs), {"x": feed}, note, **ways)
    return [known, Case("Slice", build, {"x": feed} | fed, f"{note}, fed", **ways)]


def pad(
    feed: Any, pads: Any, note: str, *more: Any, mode: str = "constant", **ways: Any
) -> list[Case]:
    def build(op: Any, x: Any, pads: Any) -> Any:
        return op.Pad(x, pads, *more, mode=mode)

    known = Case("Pad", lambda op, x: build(op, x, pads), {"x": feed}, note, **ways)
    return [known, Case("Pad", build, {"x": feed, "pads": np.array(pads)}, f"{note}, fed", **ways)]


END = np.iinfo(np.int64).max

CASES = [
    *cut(normal(5, 4), "one axis", [1], [3], [0]),
    *cut(normal(5, 4), "every axis", [1, 0], [4, 2]),
    *cut(normal(5, 4), "one row, by a vast step", [2], [5], [0], [10**9]),
    *cut(normal(5, 4), "the last row, by a vast step", [-1], [-(10**9)], [0], [-(10**9)]),
    Case(
        "Slice",
        lambda op, x, start: op.Slice(
            x, start, np.array([5], np.int32), np.array([0], np.int32), np.array([1], np.int32)
        ),
        {"x": normal(5, 4), "start": np.array([2], np.int32)},
        "int32, as TensorFlow has it",
    ),
    *cut(normal(5, 4), "from the back", [-3], [-1], [-1]),
    *cut(normal(5, 4), "beyond the ends", [-9, 2], [3, 99], [0, 1]),
    *cut(normal(5, 4), "nothing", [3], [3], [0]),
    *cut(normal(7, 4), "steps", [1, 0], [7, END], [0, 1], [2, 3]),
    *cut(normal(7, 4), "backwards", [-1], [-END], [0], [-1]),
    *cut(normal(8, 4), "backwards in steps", [6, 9], [0, -END], [0, 1], [-2, -3]),
    *cut(normal(3, 4), "backwards, nothing", [0], [2], [1], [-1]),
    *cut(normal(0, 4), "of nothing", [1], [3], [1]),
    Case(
        "Slice",
        lambda op, x, start: op.Slice(x, start, [5], [0]),
        {"x": normal(5, 4), "start": np.array([-2])},
        "start fed",
    ),
    Case(
        "Slice",
        lambda op, x, start: op.Slice(x, start, [-END], [0], [-2]),
        {"x": normal(5, 4), "start": np.array([-2])},
        "start fed, backwards",
    ),
    *pad(normal(2, 3), [1, 0, 2, 1], "constant"),
    *pad(normal(2, 3), [0, 2], "constant, one axis", None, [-1]),
    *pad(normal(4, 5), [-1, 2, 1, -2], "constant, cut"),
    *pad(normal(0, 3), [1, 0, 2, 1], "constant, of nothing"),
    Case(
        "Pad",
        lambda op, x, value: op.Pad(x, [1, 0, 0, 2], value),
        {"x": normal(2, 3), "value": normal()},
        "value",
        autograd=False,  # the kernel takes a number
    ),
    Case(
        "Pad",
        lambda op, x, value: op.Pad(x, [-1, 1, 0, 2], value),
        {"x": normal(2, 3), "value": normal()},
        "value, cut",
        autograd=False,  # the kernel takes a number
    ),
    *pad(normal(3, 4), [2, 1, 1, 3], "reflect", mode="reflect"),
    *pad(normal(3, 4), [2, 1, 1, 3], "edge", mode="edge"),
    *pad(normal(3, 4), [2, 1, 1, 3], "wrap", mode="wrap"),
    *pad(normal(2, 3, 4), [1, 2], "reflect, one axis", None, [1], mode="reflect"),
    *pad(normal(4, 5), [-1, 2, 1, -2], "edge, cut", mode="edge"),
    Case(
        "Pad",
        lambda op, x, axes: op.Pad(x, [1, 2], None, axes, mode="reflect"),
        {"x": normal(3, 4), "axes": np.array([1])},
        "axes fed",
    ),
    Case("CenterCropPad", lambda op, x: op.CenterCropPad(x, [6, 3]), {"x": normal(3, 6)}),
    Case(
        "CenterCropPad",
        lambda op, x: op.CenterCropPad(x, [4, 4], axes=[-1, 0]),
        {"x": normal(5, 2, 7)},
        "axes",
    ),
    Case(
        "CenterCropPad",
        lambda op, x, s: op.CenterCropPad(x, s),
        {"x": normal(4, 7), "s": np.array([7, 4])},
        "shape fed",
    ),
]
