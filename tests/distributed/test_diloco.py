"""DiLoCo: an outer SGD on the progress of the processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.distributed import DiLoCo, LocalSGD
from onward.errors import CheckpointMismatch, OptionError
from tests.distributed.group_of_threads import run_threads

ROUND = DiLoCo(every=3)


def start() -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, 7), torch.full((2, 2), 0.5).view(-1)]


def move(vectors: list[torch.Tensor], rank: int, step: int) -> None:
    """A made-up update of the inner optimizer."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    for vector in vectors:
        vector.add_(torch.randn(vector.numel(), generator=generator), alpha=0.1)


def run_rounds(communicator: Any, settings: Any, steps: int) -> Any:
    vectors = start()
    averager = settings.open(communicator, vectors)
    for step in range(steps):
        move(vectors, communicator.rank, step)
        averager.after_update(vectors)
    return vectors, averager


def outer_sgd(settings: DiLoCo, size: int, steps: int) -> list[torch.Tensor]:
    """The same rounds by torch.optim.SGD, in one process."""
    outer = start()
    optimizer = torch.optim.SGD(
        outer, lr=settings.outer_lr, momentum=settings.outer_momentum, nesterov=settings.nesterov
    )
    for first in range(0, steps, settings.every):
        copies = [[each.clone() for each in outer] for _ in range(size)]
        for rank, copy in enumerate(copies):
            for step in range(first, first + settings.every):
                move(copy, rank, step)
        for i, each in enumerate(outer):
            each.grad = sum((each - copy[i] for copy in copies), torch.zeros(())) / size
        optimizer.step()
    return outer


@pytest.mark.parametrize(
    "settings",
    [
        ROUND,
        DiLoCo(every=2, outer_lr=0.5, outer_momentum=0.5, nesterov=False),
        DiLoCo(every=1, outer_lr=1.5, outer_momentum=0.0, nesterov=False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("size", [1, 3])
def test_rounds_match_the_sgd_of_torch(settings: DiLoCo, size: int) -> None:
    steps = 4 * settings.every
    expected = outer_sgd(settings, size, steps)
    for vectors, _ in run_threads(run_rounds, size, settings, steps):
        torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)


def test_without_momentum_at_rate_1_it_is_local_sgd() -> None:
    plain = DiLoCo(every=3, outer_lr=1.0, outer_momentum=0.0, nesterov=False)
    expected = run_threads(run_rounds, 2, LocalSGD(every=3), 9)[0][0]
    for vectors, _ in run_threads(run_rounds, 2, plain, 9):
        torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-6)


def test_weights_are_equal_after_a_round_and_differ_within_it() -> None:
    (one, _), (two, _) = run_threads(run_rounds, 2, ROUND, 6)
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    (one, _), (two, _) = run_threads(run_rounds, 2, ROUND, 7)
    assert not any(torch.equal(a, b) for a, b in zip(one, two))


@pytest.mark.parametrize("saved", [3, 4])
def test_a_restored_averager_continues_bit_for_bit(saved: int) -> None:
    def interrupted(communicator: Any) -> list[torch.Tensor]:
        vectors, averager = run_rounds(communicator, ROUND, saved)
        again = ROUND.open(communicator, start())
        again.restore(averager.state())
        for step in range(saved, 9):
            move(vectors, communicator.rank, step)
            again.after_update(vectors)
        return vectors

    expected = run_threads(run_rounds, 2, ROUND, 9)
    for (vectors, _), found in zip(expected, run_threads(interrupted, 2)):
        assert all(torch.equal(a, b) for a, b in zip(vectors, found))


def test_a_round_that_is_not_finite_is_dropped_by_all() -> None:
    def spoilt(communicator: Any) -> Any:
        vectors, averager = run_rounds(communicator, ROUND, 3)
        before, state = [each.clone() for each in vectors], averager.state()
        for step in range(3):
            move(vectors, communicator.rank, step)
            if communicator.rank == 1:
                vectors[0][2] = torch.nan
            averager.after_update(vectors)
        after = averager.state()
        assert int(after.pop("updates")) == 6 and int(state.pop("updates")) == 3
        assert all(np.array_equal(after[name], array) for name, array in state.items())
        return all(torch.equal(a, b) for a, b in zip(before, vectors))

    assert run_threads(spoilt, 2) == [True, True]


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    def run(communicator: Any) -> None:
        averager = ROUND.open(communicator, start())
        before = averager.state()
        with pytest.raises(CheckpointMismatch, match=r"start.1 has 9 elements, this run needs 4"):
            averager.restore(before | {"start.0": np.ones(7), "start.1": np.ones(9)})
        with pytest.raises(CheckpointMismatch, match=r"momentum.0 is missing"):
            averager.restore({k: v for k, v in before.items() if "momentum" not in k})
        averager.restore({})
        after = averager.state()
        assert all(np.array_equal(after[name], before[name]) for name in before)

    run_threads(run, 1)


def test_settings_are_checked() -> None:
    with pytest.raises(OptionError, match=r"DiLoCo.nesterov needs outer_momentum above 0"):
        DiLoCo(outer_momentum=0.0)
    with pytest.raises(
        OptionError, match=r"DiLoCo.outer_momentum must be a number from 0 to below"
    ):
        DiLoCo(outer_momentum=1.0)
    assert DiLoCo().bytes_sent([400, 40], 4) == 660
