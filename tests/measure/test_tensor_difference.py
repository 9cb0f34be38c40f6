"""How far tensors are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.measure.tensor_difference import Tolerance, compare_tensors, worst_of

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0], [1.0, 2.001], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([0.0], [1e-6], True),
        ([0.0], [1e-4], False),
        ([NAN, INF, -INF], [NAN, INF, -INF], True),
        ([NAN], [1.0], False),
        ([1.0], [NAN], False),
        ([INF], [-INF], False),
        ([INF], [1e30], False),
        ([], [], True),
        ([True, False], [True, True], False),
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a", "c"], False),
        ([1 + 1j], [1 + 1j], True),
        ([1 + 1j], [1 - 1j], False),
    ],
)
def test_the_tolerance_decides(a: Any, b: Any, same: bool) -> None:
    difference = compare_tensors(np.array(a), np.array(b))
    assert difference.same is same
    assert (difference.beyond == 0) is same


def test_the_worst_element_is_shown() -> None:
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    difference = compare_tensors(a, a + np.array([[0, 0], [0.5, 0.1]]))
    assert difference.worst == (1, 0) and difference.values == ("3", "3.5")
    assert difference.beyond == 2 and difference.elements == 4
    assert difference.max_absolute == 0.5 and difference.max_relative == 0.125


def test_other_types_are_compared_by_value() -> None:
    halves = np.array([0.1, 0.2], np.float16)
    assert compare_tensors(np.array([0.1, 0.2], np.float32), halves).same


def test_incomparable_values_have_a_reason() -> None:
    one = np.zeros((1, 2))
    assert compare_tensors(one, np.zeros(2)).reason == "shape (1, 2) against (2)"
    assert compare_tensors(one, np.array([["a", "b"]])).reason == "float64 against <U1"
    assert compare_tensors(one, None).reason == "a tensor against nothing"
    assert compare_tensors([one], [one, one]).reason == "a sequence of 1 against one of 2"
    assert compare_tensors(None, None).same
    assert not compare_tensors([one, one], [one, one + 1]).same


def test_the_tolerance_can_be_given() -> None:
    a, b = np.array([1.0]), np.array([1.4])
    assert compare_tensors(a, b, Tolerance(relative=0.5)).same
    assert compare_tensors(a, b, Tolerance(absolute=0.5)).same


def test_maps_are_compared_key_by_key() -> None:
    a, b = [{"x": 0.25, "y": 0.75}], [{"y": 0.5, "x": 0.25}]
    assert compare_tensors(a, a).same
    apart = compare_tensors(a, b)
    assert (apart.same, apart.beyond, apart.max_absolute, apart.worst) == (False, 1, 0.25, (1,))
    assert compare_tensors({"x": 1.0}, {"y": 1.0}).reason == "key 'x' is in only one map"
    assert compare_tensors({"x": 1.0}, np.ones(1)).reason == "a map against a tensor"
    assert not compare_tensors({1: "a"}, {1: "b"}).same


def test_cosine_and_snr_of_known_vectors() -> None:
    found = compare_tensors(np.array([3.0, 4.0]), np.array([4.0, 3.0]))
    assert found.cosine == pytest.approx(0.96)
    assert found.snr == pytest.approx(10 * np.log10(25 / 2))
    equal = compare_tensors(np.array([1, 2]), np.array([1, 2]))
    assert equal.cosine == 1 and equal.snr == np.inf
    zero = compare_tensors(np.zeros(2), np.ones(2))
    assert zero.cosine == 0 and zero.snr == -np.inf
    assert compare_tensors(np.zeros(2), np.zeros(2)).cosine == 1


def test_similarity_ignores_values_that_are_not_finite() -> None:
    found = compare_tensors(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]))
    assert found.cosine == 1 and found.snr == np.inf
    assert compare_tensors(np.array(["a"]), np.array(["a"])).cosine is None
    assert compare_tensors(np.zeros(2), np.zeros(3)).snr is None


def test_worst_of_several_counts_all_of_them() -> None:
    a, b, c = np.array([1.0, 2.0]), np.array([1.0, 2.5]), np.array([1.0, 2.0])
    found = worst_of([compare_tensors(a, c), compare_tensors(a, b)])
    assert not found.same and (found.beyond, found.elements) == (1, 4)
    assert found.max_absolute == 0.5 and found.worst == (1,) and found.snr is not None
    assert found.snr < np.inf
