"""How far two tensors are apart: the worst element, and how many are beyond the tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """|a - b| <= absolute + relative |a|, element by element; NaN equals NaN."""

    relative: float = 1e-3
    absolute: float = 1e-5


@dataclass(frozen=True)
class Difference:
    """What two tensors that should be equal differ by."""

    same: bool  # within the tolerance
    max_absolute: float = 0.0
    max_relative: float = 0.0  # to the largest element of the first
    worst: tuple[int, ...] = ()  # the index of the element that is furthest beyond the tolerance
    values: tuple[str, str] = ("", "")  # that element in either
    beyond: int = 0  # elements beyond the tolerance
    elements: int = 0
    reason: str = ""  # where the tensors cannot be compared by element


def compare_tensors(a: Any, b: Any, tolerance: Tolerance | None = None) -> Difference:
    """How far two tensors are apart, or two sequences or maps of them.

    >>> compare_tensors(np.array([1.0, 2.0]), np.array([1.0, 2.5])).beyond
    1
    """
    tolerance = tolerance or Tolerance()
    if isinstance(a, list) and isinstance(b, list):
        return _compare_lists(a, b, tolerance)
    if isinstance(a, dict) and isinstance(b, dict):
        return _compare_maps(a, b, tolerance)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        same = a is None and b is None
        return Difference(same, reason="" if same else f"{_kind(a)} against {_kind(b)}")
    if a.shape != b.shape:
        return Difference(False, reason=f"shape {_shape(a)} against {_shape(b)}")
    text = a.dtype.kind in "OUS"
    if text != (b.dtype.kind in "OUS"):
        return Difference(False, reason=f"{a.dtype} against {b.dtype}")
    return _compare_text(a, b) if text else _compare_numbers(a, b, tolerance)


def _compare_numbers(a: Array, b: Array, tolerance: Tolerance) -> Difference:
    if not a.size:
        return Difference(True)
    kind = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    x, y = a.astype(kind), b.astype(kind)
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        apart[(x == y) | (np.isnan(x) & np.isnan(y))] = 0  # infinities too
        apart[np.isnan(apart)] = np.inf
        excess = apart - (tolerance.absolute + tolerance.relative * np.abs(x))
        excess[np.isnan(excess)] = np.where(apart == 0, -1, np.inf)[np.isnan(excess)]
    finite = np.abs(x[np.isfinite(x)])
    largest, most = float(finite.max(initial=0)), float(apart.max())
    worst = np.unravel_index(int(np.argmax(excess)), a.shape)
    return Difference(
        same=bool((excess <= 0).all()),
        max_absolute=most,
        max_relative=most / largest if largest else (0.0 if most == 0 else float("inf")),
        worst=tuple(int(i) for i in worst),
        values=(_spell(a[worst]), _spell(b[worst])),
        beyond=int((excess > 0).sum()),
        elements=int(a.size),
    )


def _compare_text(a: Array, b: Array) -> Difference:
    wrong = a.astype(np.str_) != b.astype(np.str_)
    if not wrong.any():
        return Difference(True, elements=int(a.size))
    worst = tuple(int(i) for i in np.argwhere(wrong)[0])
    values = (repr(a[worst]), repr(b[worst]))
    count = int(wrong.sum())
    return Difference(False, float("inf"), float("inf"), worst, values, count, int(a.size))


def _compare_lists(a: list[Any], b: list[Any], tolerance: Tolerance) -> Difference:
    """The worst of the pairs."""
    if len(a) != len(b):
        return Difference(False, reason=f"a sequence of {len(a)} against one of {len(b)}")
    each = [compare_tensors(x, y, tolerance) for x, y in zip(a, b)]
    worst = max(each, key=lambda d: (not d.same, d.max_absolute), default=Difference(True))
    return worst


def _compare_maps(a: dict[Any, Any], b: dict[Any, Any], tolerance: Tolerance) -> Difference:
    """Maps of the same keys, by what they hold; the first one's order counts the elements."""
    for here, there in ((a, b), (b, a)):
        lone = [key for key in here if key not in there]
        if lone:
            return Difference(False, reason=f"key {lone[0]!r} is in one map alone")
    return compare_tensors(_array(list(a.values())), _array([b[key] for key in a]), tolerance)


def _array(values: list[Any]) -> Array:
    array = np.array(values)
    return array.astype(object) if array.dtype.kind in "US" else array


def _kind(value: Any) -> str:
    kinds = {list: "a sequence", dict: "a map", type(None): "nothing"}
    return kinds.get(type(value), "a tensor")


def _shape(array: Array) -> str:
    return f"({', '.join(map(str, array.shape))})"


def _spell(value: Any) -> str:
    return f"{float(value):.7g}" if not np.iscomplexobj(value) else f"{complex(value):.7g}"
