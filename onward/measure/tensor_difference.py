"""The difference of two tensors: the worst element, those beyond the tolerance, the similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """The difference of two tensors."""

    same: bool  # within the tolerance
    max_absolute: float = 0.0
    max_relative: float = 0.0  # to the largest element of the first
    worst: tuple[int, ...] = ()  # the index of the element that is furthest beyond the tolerance
    values: tuple[str, str] = ("", "")  # that element in both tensors
    beyond: int = 0  # elements beyond the tolerance
    elements: int = 0
    cosine: float | None = None  # similarity of the two as vectors: 1 where they point the same way
    snr: float | None = None  # dB: the first's power over that of their difference; inf: equal
    reason: str = ""  # why they cannot be compared element by element


def compare_tensors(a: Any, b: Any, tolerance: Tolerance | None = None) -> Difference:
    """The difference of two tensors, or of two sequences or maps of them.

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
        distance = np.abs(x - y)
        distance[(x == y) | (np.isnan(x) & np.isnan(y))] = 0  # infinities too
        distance[np.isnan(distance)] = np.inf
        excess = distance - (tolerance.absolute + tolerance.relative * np.abs(x))
        excess[np.isnan(excess)] = np.where(distance == 0, -1, np.inf)[np.isnan(excess)]
    finite = np.abs(x[np.isfinite(x)])
    largest, most = float(finite.max(initial=0)), float(distance.max())
    worst = np.unravel_index(int(np.argmax(excess)), a.shape)
    return Difference(
        same=bool((excess <= 0).all()),
        max_absolute=most,
        max_relative=most / largest if largest else (0.0 if most == 0 else float("inf")),
        worst=tuple(int(i) for i in worst),
        values=(_spell(a[worst]), _spell(b[worst])),
        beyond=int((excess > 0).sum()),
        elements=int(a.size),
        cosine=cosine_similarity(x, y),
        snr=signal_to_noise(x, y),
    )


def cosine_similarity(x: Array, y: Array) -> float:
    """x . y / (|x| |y|), over the elements that are finite in both; 1 where both are zero.

    >>> cosine_similarity(np.array([3.0, 4.0]), np.array([4.0, 3.0]))
    0.96
    """
    x, y = _finite(x, y)
    lengths = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    if not all(lengths):
        return 1.0 if lengths[0] == lengths[1] else 0.0
    product = float(np.vdot(x / lengths[0], y / lengths[1]).real)
    return 1.0 if np.array_equal(x, y) else product


def signal_to_noise(x: Array, y: Array) -> float:
    """10 log10(|x|^2 / |x - y|^2) in dB, over the elements that are finite in both.

    >>> round(signal_to_noise(np.array([10.0]), np.array([9.0])), 6)
    20.0
    """
    x, y = _finite(x, y)
    signal, noise = float(np.linalg.norm(x)), float(np.linalg.norm(x - y))
    if noise == 0:
        return float("inf")
    return 20 * float(np.log10(signal / noise)) if signal else float("-inf")


def _finite(x: Array, y: Array) -> tuple[Array, Array]:
    both = np.isfinite(x) & np.isfinite(y)
    return x[both], y[both]


def worst_of(differences: Sequence[Difference]) -> Difference:
    """The worst difference of one value on several feeds, with the sums of counts.

    >>> worst_of([Difference(True, elements=2), Difference(False, beyond=1, elements=2)]).elements
    4
    """
    worst = max(differences, key=lambda d: (not d.same, bool(d.reason), d.max_absolute))
    cosines = [d.cosine for d in differences if d.cosine is not None]
    ratios = [d.snr for d in differences if d.snr is not None]
    return replace(
        worst,
        max_absolute=max(d.max_absolute for d in differences),
        max_relative=max(d.max_relative for d in differences),
        beyond=sum(d.beyond for d in differences),
        elements=sum(d.elements for d in differences),
        cosine=min(cosines, default=None),
        snr=min(ratios, default=None),
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
    """Compare maps with the same keys, in the first one's order."""
    for here, there in ((a, b), (b, a)):
        lone = [key for key in here if key not in there]
        if lone:
            return Difference(False, reason=f"key {lone[0]!r} is in only one map")
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
