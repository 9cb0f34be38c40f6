"""Cases of rules/signal.py."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tests.gradients.case import Case, normal, positive


def _dft(
    note: str, x: Any, length: int | None = None, axis: int | None = None, **rest: Any
) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd") if n in rest}
    given = [None if n is None else np.array(n) for n in (length, axis)]
    return Case("DFT", lambda op, x: op.DFT(x, *given, **rest), {"x": x}, note, **options)


def _stft(note: str, feeds: dict[str, Any], length: int | None = None, **rest: Any) -> Case:
    options = {n: rest.pop(n) for n in ("ort", "autograd") if n in rest}
    taps = None if length is None else np.array(length)
    return Case(
        "STFT",
        lambda op, x, window=None: op.STFT(x, np.array(3), window, taps, **rest),
        feeds,
        note,
        **options,
    )


_PARTS = {1: "real", 2: "complex"}

CASES = [
    *(
        _dft(
            f"{_PARTS[parts]}, {'inverse, ' if inverse else ''}{size} to {length}",
            normal(2, size, parts),
            length,
            inverse=inverse,
        )
        for parts, inverse, (size, length) in product(
            (1, 2), (0, 1), ((6, None), (5, None), (5, 8), (6, 3))
        )
    ),
    *(
        _dft(f"onesided, {size} to {length}", normal(2, size, 1), length, onesided=1)
        for size, length in ((6, None), (5, None), (5, 8), (6, 3))
    ),
    *(
        _dft(
            f"onesided, inverse, {size} to {length}",
            normal(2, size, 2),
            length,
            onesided=1,
            inverse=1,
        )
        for size, length in ((4, None), (4, 7), (3, 6), (4, 10), (6, 4), (6, 5))
    ),
    _dft("first axis", normal(4, 3, 2), axis=0),
    _dft("a negative axis", normal(2, 4, 3, 1), axis=-3, onesided=1),
    _dft("one signal", normal(5, 1)),
    *(
        Case(
            "DFT",
            lambda op, x, axis, flags=flags: op.DFT(x, None, axis, **flags),
            {"x": normal(3, 5, 4, parts), "axis": np.array(axis)},
            f"an axis that is fed, {axis}, {note}",
        )
        for axis, parts, note, flags in (
            (0, 2, "complex", {}),
            (1, 1, "onesided", {"onesided": 1}),
            (-2, 2, "inverse", {"inverse": 1}),
            (-3, 2, "onesided, inverse", {"inverse": 1, "onesided": 1}),
        )
    ),
    Case(
        "DFT",
        lambda op, x, length, axis: op.DFT(x, length, axis, onesided=1),
        {"x": normal(2, 5, 3, 1), "length": np.array(8), "axis": np.array(1)},
        "a length and an axis that are fed",
    ),
    Case(
        "DFT",
        lambda op, x, length: op.DFT(x, length, onesided=1),
        {"x": normal(2, 5, 1), "length": np.array(8)},
        "a length that is fed",
    ),
    _stft("window", {"x": normal(2, 14, 1), "window": positive(5)}),
    _stft("no window", {"x": normal(2, 14, 1)}, 4),
    _stft("window and length", {"x": normal(2, 13, 1), "window": positive(5)}, 5),
    _stft("one frame", {"x": normal(2, 6, 1)}, ort=False),  # onnxruntime wants a length
    _stft("not onesided", {"x": normal(2, 14, 1), "window": positive(4)}, onesided=0),
    _stft("complex", {"x": normal(2, 14, 2), "window": positive(4)}, onesided=0),
    Case(
        "STFT",
        lambda op, x, step, length: op.STFT(x, step, None, length),
        {"x": normal(2, 14, 1), "step": np.array(3), "length": np.array(4)},
        "a step and a length that are fed",
    ),
]
