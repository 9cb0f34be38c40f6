"""Cases of rules/pool.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, positive, spread


def _pool(operator: str, note: str, x: Any, **rest: Any) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd", "differences", "dynamic") if n in rest}
    return Case(operator, lambda op, x: getattr(op, operator)(x, **rest), {"x": x}, note, **options)


_TIED = np.repeat([[[[3.0, 3.0, 1.0, 2.0], [3.0, 0.0, 2.0, 2.0]]]], 2, axis=2)

_GEOMETRIES: dict[str, dict[str, Any]] = {
    "": {"kernel_shape": [2, 2]},
    "tiles": {"kernel_shape": [5, 2], "strides": [5, 2]},
    "one row more than halves": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "overlapping strides": {"kernel_shape": [3, 3], "strides": [2, 2]},
    "pads": {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [1, 2]},
    "dilations": {"kernel_shape": [2, 3], "dilations": [2, 1]},
    "ceil_mode": {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
    "ceil_mode and pads": {
        "kernel_shape": [3, 3],
        "strides": [2, 3],
        "ceil_mode": 1,
        "pads": [1, 1, 1, 1],
    },
    "SAME_UPPER": {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "SAME_LOWER": {"kernel_shape": [2, 2], "auto_pad": "SAME_LOWER"},
    "VALID": {"kernel_shape": [3, 3], "strides": [2, 1], "auto_pad": "VALID"},
}

CASES = [
    *(_pool("MaxPool", note, spread(2, 2, 5, 6), **rest) for note, rest in _GEOMETRIES.items()),
    _pool("MaxPool", "one axis", spread(2, 2, 7), kernel_shape=[3], strides=[2]),
    _pool(
        "MaxPool", "three axes", spread(1, 2, 4, 3, 4), kernel_shape=[2, 2, 3], strides=[2, 1, 1]
    ),
    _pool("MaxPool", "ties go to one", _TIED, kernel_shape=[2, 2], differences=False),
    _pool(
        "MaxPool",
        "ties and overlaps",
        _TIED,
        kernel_shape=[2, 2],
        strides=[1, 1],
        differences=False,
    ),
    Case(
        "MaxPool",
        lambda op, x: op.MaxPool(x, kernel_shape=[2, 2], storage_order=1, outputs=2),
        {"x": spread(2, 2, 4, 5)},
        "storage_order, indices read",
    ),
    *(_pool("AveragePool", note, normal(2, 2, 5, 6), **rest) for note, rest in _GEOMETRIES.items()),
    *(
        _pool(
            "AveragePool",
            f"{note}, padding counted",
            normal(2, 2, 5, 6),
            count_include_pad=1,
            **rest,
        )
        for note, rest in _GEOMETRIES.items()
        if note in ("pads", "ceil_mode and pads", "SAME_UPPER", "ceil_mode")
    ),
    _pool("AveragePool", "one axis", normal(2, 2, 7), kernel_shape=[3], strides=[2]),
    _pool("AveragePool", "three axes", normal(1, 2, 4, 3, 4), kernel_shape=[2, 2, 3], pads=[1] * 6),
    *(_pool("LpPool", note, positive(2, 2, 5, 6), **rest) for note, rest in _GEOMETRIES.items()),
    *(_pool("LpPool", f"p = {p}", spread(1, 2, 4, 5), kernel_shape=[2, 2], p=p) for p in (1, 3, 4)),
    _pool(
        "LpPool",
        "of zeros",
        np.zeros((1, 1, 2, 2)),
        kernel_shape=[2, 2],
        differences=False,
        autograd=False,
    ),
    *(_pool("GlobalLpPool", f"p = {p}", spread(2, 2, 4, 3), p=p) for p in (1, 2, 3, 4)),
    _pool("GlobalLpPool", "of zeros", np.zeros((1, 1, 2, 2)), p=2, differences=False),
    _pool("GlobalAveragePool", "", normal(2, 3, 4, 5)),
    _pool("GlobalAveragePool", "one axis", normal(2, 3, 4)),
    _pool("GlobalMaxPool", "", spread(2, 3, 4, 5)),
    _pool("GlobalMaxPool", "ties share", _TIED, differences=False),
    Case(
        "MaxUnpool",
        lambda op, x, i: op.MaxUnpool(x, i, kernel_shape=[2, 2], strides=[2, 2]),
        {"x": normal(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])},
    ),
    Case(
        "MaxUnpool",
        lambda op, x, i: op.MaxUnpool(
            x, i, np.array([1, 1, 5, 5]), kernel_shape=[2, 2], strides=[2, 2]
        ),
        {"x": normal(1, 1, 2, 2), "i": np.array([[[[5, 7], [13, 15]]]])},
        "output shape",
        ort=False,  # it counts the indices in the output's shape, ONNX in the pooled one
    ),
]
