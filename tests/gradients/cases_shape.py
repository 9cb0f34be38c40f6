"""Cases of rules/shape.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal


def move(operator: str, feed: Any, note: str, *inputs: Any, **attributes: Any) -> Case:
    return Case(
        operator, lambda op, x: op.node(operator, [x, *inputs], attributes), {"x": feed}, note
    )


IMAGE = normal(2, 8, 3, 2)
LENGTHS = np.array([1, 3, 2, 0])

CASES = [
    move("Reshape", normal(2, 6), "", [3, 4]),
    move("Reshape", normal(2, 3, 4), "what is left, what was", [0, -1]),
    move("Reshape", normal(0, 3), "empty", [3, 0, 2], allowzero=1),
    move("Reshape", normal(1, 1), "to rank 0", np.array([], np.int64)),
    Case(
        "Reshape",
        lambda op, x, s: op.Reshape(x, s),
        {"x": normal(2, 6), "s": np.array([4, -1])},
        "shape fed",
    ),
    move("Flatten", normal(2, 3, 4), ""),
    move("Flatten", normal(2, 3, 4), "from the back", axis=-1),
    move("Flatten", normal(2, 3), "all of it", axis=0),
    move("Squeeze", normal(2, 1, 3, 1), "", [1, -1]),
    Case(
        "Squeeze", lambda op, x: op.Squeeze(x), {"x": normal(2, 1, 3, 1)}, "every 1", dynamic=False
    ),
    move("Unsqueeze", normal(2, 3), "", [0, -1]),
    move("Unsqueeze", normal(), "rank 0", [0]),
    move("Transpose", normal(2, 3, 4), ""),
    move("Transpose", normal(2, 3, 4), "in an order", perm=[1, 2, 0]),
    move("DepthToSpace", IMAGE, "", blocksize=2),
    move("DepthToSpace", IMAGE, "columns first", blocksize=2, mode="CRD"),
    move("SpaceToDepth", normal(2, 3, 4, 6), "", blocksize=2),
    Case(
        "SpaceToDepth",
        lambda op, x: op.SpaceToDepth(x, blocksize=2, mode="CRD"),
        {"x": normal(2, 3, 4, 6)},
        "columns first",
        ort=False,  # since opset 28
    ),
    move("Expand", normal(3, 1), "", [2, 1, 4]),
    move("Expand", normal(3, 1), "by ones", [1, 1]),
    move("Expand", normal(), "rank 0", [2, 3]),
    Case(
        "Expand",
        lambda op, x, s: op.Expand(x, s),
        {"x": normal(3, 1), "s": np.array([2, 1, 4])},
        "shape fed",
    ),
    move("Tile", normal(2, 3), "", [2, 3]),
    move("Tile", normal(2, 3), "one axis", [1, 2]),
    move("Tile", normal(2, 3), "once", [1, 1]),
    move("Tile", normal(2, 3), "never", [0, 2]),
    Case(
        "Tile",
        lambda op, x, r: op.Tile(x, r),
        {"x": normal(2, 3), "r": np.array([2, 2])},
        "repeats fed",
    ),
    Case(
        "Concat", lambda op, a, b: op.Concat(a, b, axis=1), {"a": normal(2, 3), "b": normal(2, 4)}
    ),
    Case(
        "Concat",
        lambda op, a, b, c: op.Concat(a, b, c, a, axis=-2),
        {"a": normal(2, 3), "b": normal(1, 3), "c": normal(0, 3)},
        "one twice, one empty",
    ),
    Case("Concat", lambda op, a: op.Concat(a, axis=0), {"a": normal(2, 3)}, "one"),
    Case("Split", lambda op, x: op.Split(x, num_outputs=2, axis=1, outputs=2), {"x": normal(2, 4)}),
    Case(
        "Split",
        lambda op, x: op.Split(x, num_outputs=3, axis=-1, outputs=3),
        {"x": normal(2, 7)},
        "the last smaller",
    ),
    Case("Split", lambda op, x: op.Split(x, [1, 3], outputs=2), {"x": normal(4, 2)}, "sizes"),
    Case(
        "Split",
        lambda op, x: op.Split(x, [1, 3, 2], outputs=3)[1],
        {"x": normal(6, 2)},
        "one is read",
    ),
    Case(
        "Split",
        lambda op, x, s: op.Split(x, s, outputs=2),
        {"x": normal(4, 2), "s": np.array([1, 3])},
        "sizes fed",
    ),
    Case(
        "ReverseSequence",
        lambda op, x, n: op.ReverseSequence(x, n),
        {"x": normal(3, 4, 2), "n": LENGTHS},
    ),
    Case(
        "ReverseSequence",
        lambda op, x, n: op.ReverseSequence(x, n, batch_axis=0, time_axis=1),
        {"x": normal(4, 3, 2), "n": LENGTHS},
        "batch first",
    ),
    move("Trilu", normal(2, 3, 4), ""),
    move("Trilu", normal(4, 3), "lower", upper=0),
    move("Trilu", normal(4, 3), "another diagonal", np.int64(-1)),
    move("Trilu", normal(4, 3), "lower, another diagonal", np.int64(1), upper=0),
    Case(
        "Range",
        lambda op, start, limit, delta: op.Range(start, limit, delta),
        {"start": np.array(0.3), "limit": np.array(4.1), "delta": np.array(0.7)},
        autograd=False,  # the kernel takes numbers
    ),
]
