"""LocalSGD: weights averaged every few updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.distributed import LocalSGD
from onward.distributed.compression.uncompressed import SumReducer
from onward.errors import OptionError
from tests.distributed.group_of_threads import run_threads


def gradient(weights: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    """Of a least-squares problem, with the rows of one process."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x, y = torch.randn(8, 5, generator=generator), torch.randn(8, generator=generator)
    return 2 * x.T @ (x @ weights - y) / 8


def average_weights(communicator: Any, settings: LocalSGD, steps: int) -> Any:
    vectors = [torch.ones(5), torch.full((3,), 2.0)]
    optimizer = torch.optim.SGD(vectors, lr=0.05, momentum=0.9)
    averager, when = settings.open(communicator, vectors), []
    for step in range(steps):
        vectors[0].grad = gradient(vectors[0], communicator.rank, step)
        vectors[1].grad = vectors[1] * (1 + communicator.rank)
        optimizer.step()
        if averager.after_update(vectors):
            when.append(step + 1)
    return torch.cat(vectors), when, averager.state()


def average_gradients(communicator: Any, steps: int) -> torch.Tensor:
    vectors = [torch.ones(5), torch.full((3,), 2.0)]
    optimizer = torch.optim.SGD(vectors, lr=0.05, momentum=0.9)
    for step in range(steps):
        grads = [
            gradient(vectors[0], communicator.rank, step),
            vectors[1] * (1 + communicator.rank),
        ]
        for vector, grad in zip(vectors, grads):
            SumReducer(communicator).reduce(grad).wait()
            vector.grad = grad / communicator.size
        optimizer.step()
    return torch.cat(vectors)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_average_at_each_step_equals_averaged_gradients(size: int) -> None:
    expected = run_threads(average_gradients, size, 12)[0]
    for weights, when, _ in run_threads(average_weights, size, LocalSGD(every=1), 12):
        assert when == [*range(1, 13)]
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LocalSGD(every=4), [4, 8]),
        (LocalSGD(every=3, warmup_steps=2), [1, 2, 5, 8]),
        (LocalSGD(every=50), []),
        (LocalSGD(every=50, warmup_steps=50), [*range(1, 11)]),
    ],
    ids=repr,
)
def test_averages_are_made_when_it_is_time(settings: LocalSGD, expected: list[int]) -> None:
    for _, when, state in run_threads(average_weights, 2, settings, 10):
        assert when == expected and int(state["updates"]) == 10


def test_weights_are_equal_after_an_average_and_differ_before_it() -> None:
    one, two = (each for each, _, _ in run_threads(average_weights, 2, LocalSGD(every=5), 10))
    assert torch.equal(one, two)
    one, two = (each for each, _, _ in run_threads(average_weights, 2, LocalSGD(every=5), 9))
    assert not torch.equal(one, two)


def test_a_restored_averager_keeps_the_count() -> None:
    def run(communicator: Any) -> list[bool]:
        averager = LocalSGD(every=4).open(communicator, [torch.ones(2)])
        averager.restore({"updates": np.array(2)})
        averager.restore({})
        return [averager.after_update([torch.ones(2)]) for _ in range(4)]

    assert run_threads(run, 2) == [[False, True, False, False]] * 2


def test_the_bytes_of_an_average() -> None:
    assert LocalSGD().bytes_sent([400, 40], 4) == 600 + 60


def test_settings_are_checked() -> None:
    with pytest.raises(OptionError, match=r"LocalSGD.every must be a whole number, at least 1"):
        LocalSGD(every=0)
    with pytest.raises(OptionError, match="LocalSGD has no setting 'steps'"):
        LocalSGD(steps=3)  # type: ignore[call-arg]
