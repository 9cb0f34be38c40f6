"""Results computed from weights are cached."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from onward.providers.torch.kernels.prepared_weights import prepared, without_weight_cache


class Counted:
    """A prepared function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.run = prepared(self._double)

    def _double(self, weight: torch.Tensor, other: torch.Tensor | None, times: int) -> torch.Tensor:
        self.calls += 1
        return weight * times


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_the_same_weights_are_prepared_once(counted: Counted) -> None:
    w, b = torch.ones(2), torch.ones(2)
    with torch.no_grad():
        first, second = counted.run(w, b, 3), counted.run(w, b, 3)
    assert first is second
    assert counted.calls == 1


def test_other_weights_or_options_are_prepared_again(counted: Counted) -> None:
    w = torch.ones(2)
    with torch.no_grad():
        counted.run(w, None, 3)
        assert counted.run(w, None, 4).tolist() == [4.0, 4.0]
        counted.run(w, torch.ones(2), 4)
        counted.run(torch.ones(2), None, 4)
    assert counted.calls == 4


def test_changed_weights_are_prepared_again(counted: Counted) -> None:
    w = torch.ones(2)
    with torch.no_grad():
        counted.run(w, None, 3)
        w.mul_(2)
        assert counted.run(w, None, 3).tolist() == [6.0, 6.0]


def test_nothing_is_cached_under_autograd(counted: Counted) -> None:
    w = torch.ones(2)
    counted.run(w, None, 3)
    counted.run(w, None, 3)
    assert counted.calls == 2


def test_inference_tensors_are_not_cached(counted: Counted) -> None:
    with torch.inference_mode():
        w = torch.ones(2)
        counted.run(w, None, 3)
        counted.run(w, None, 3)
    assert counted.calls == 2


def test_nothing_is_cached_without_weight_cache(counted: Counted) -> None:
    w = torch.ones(2)
    with torch.no_grad(), without_weight_cache():
        counted.run(w, None, 3)
        counted.run(w, None, 3)
    assert counted.calls == 2


def test_cached_results_are_freed_with_their_weights(counted: Counted) -> None:
    w = torch.ones(2)
    with torch.no_grad():
        result = weakref.ref(counted.run(w, None, 3))
    del w
    gc.collect()
    assert result() is None
