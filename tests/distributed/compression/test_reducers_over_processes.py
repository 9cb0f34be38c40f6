"""Every compression over real processes: equal bits, exact bytes, several buckets in flight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onward.distributed import HalfPrecision, Int8, PowerSGD, TopK
from onward.distributed.communicator import Communicator
from onward.programs.vector_offsets import Places, place
from tests.distributed.group_of_processes import run_processes

FLOAT32 = np.dtype("float32")
BUCKETS = [
    place({"w": (40, 30), "b": (30,), "scalar": (), "empty": (0, 4)}, FLOAT32),
    place({"kernel": (8, 3, 3, 3), "v": (5,)}, FLOAT32),
    place({"tiny": (3,)}, FLOAT32),
    place({"none": (0,)}, FLOAT32),
]
SETTINGS = {  # and the relative error of their first estimate
    HalfPrecision(): 0.01,
    HalfPrecision(dtype="float16"): 0.001,
    TopK(share=0.2): 0.9,
    TopK(share=1.0): 1e-6,
    Int8(): 0.02,
    Int8(block=16): 0.02,
    PowerSGD(rank=2): 1.0,
    PowerSGD(rank=2, factors="bfloat16", warm_start=False): 1.0,
    PowerSGD(rank=1000, minimum_rate=1.0): 1e-6,
    PowerSGD(start_step=100): 1e-6,
}


def gradients(places: Places, seed: int) -> torch.Tensor:
    """Random numbers where tensors are, zeros elsewhere."""
    vector, generator = torch.zeros(places.size), torch.Generator().manual_seed(seed)
    for each in places.slices.values():
        vector[each] = torch.randn(each.stop - each.start, generator=generator)
    return vector


def reduce_all(rank: int) -> tuple[list[dict[str, Any]], list[float]]:
    """Three steps of all buckets with each compression, all buckets in flight at once."""
    group, found = Communicator(), []
    for settings in SETTINGS:
        reducers = [settings.open(group, each) for each in BUCKETS]
        sent, results = sum(group.sent.values()), []
        for step in range(3):
            vectors = [gradients(each, 10 * step + rank) for each in BUCKETS]
            works = [reducer.reduce(vector) for reducer, vector in zip(reducers, vectors)]
            for work in works:
                work.wait()
                work.wait()  # once more changes nothing
            results.append([vector.numpy() for vector in vectors])
        found.append({"sent": sum(group.sent.values()) - sent, "results": results})
    return found, overflow(group)


def overflow(group: Communicator) -> list[float]:
    """Sums that float16 cannot hold: of several numbers, of one, of opposite ones."""
    vector = torch.tensor([30000.0, 1e5 * group.rank, (-1.0) ** group.rank * 1e5, 1.0])
    places = place({"v": (4,)}, FLOAT32)
    HalfPrecision(dtype="float16").open(group, places).reduce(vector).wait()
    return vector.tolist()


@pytest.fixture(scope="module")
def of_ranks() -> list[tuple[list[dict[str, Any]], list[float]]]:
    """What each of three processes found; starting them takes most of the time."""
    return run_processes(reduce_all, 3)


@pytest.fixture(scope="module")
def found(of_ranks: list[tuple[list[dict[str, Any]], list[float]]]) -> list[list[dict[str, Any]]]:
    return [reduced for reduced, _ in of_ranks]


@pytest.mark.integration
def test_all_processes_end_with_the_same_bits(found: list[list[dict[str, Any]]]) -> None:
    for other in found[1:]:
        for settings, one, two in zip(SETTINGS, found[0], other):
            for step, vectors in enumerate(one["results"]):
                for ours, theirs in zip(vectors, two["results"][step]):
                    assert ours.tobytes() == theirs.tobytes(), settings


def test_the_bytes_are_those_that_were_predicted(found: list[list[dict[str, Any]]]) -> None:
    size = len(found)
    for settings, each in zip(SETTINGS, found[0]):
        if settings == PowerSGD(start_step=100):
            predicted = sum(2 * 4 * places.size * (size - 1) // size for places in BUCKETS)
        else:
            predicted = sum(settings.bytes_sent(places, size) for places in BUCKETS)
        assert each["sent"] == 3 * predicted, settings


def test_the_result_estimates_the_sum(found: list[list[dict[str, Any]]]) -> None:
    for (settings, limit), each in zip(SETTINGS.items(), found[0]):
        for places, vector in zip(BUCKETS, each["results"][0]):
            exact = sum(gradients(places, rank) for rank in range(len(found))).numpy()  # type: ignore[union-attr]
            error = np.linalg.norm(vector - exact)
            assert error <= limit * np.linalg.norm(exact), settings


def test_gaps_between_tensors_stay_zero(found: list[list[dict[str, Any]]]) -> None:
    for each in found[0]:
        for vectors in each["results"]:
            for places, vector in zip(BUCKETS, vectors):
                gap = np.ones(places.size, bool)
                for inside in places.slices.values():
                    gap[inside] = False
                assert not vector[gap].any()


def test_a_sum_beyond_float16_is_not_finite_on_every_process(
    of_ranks: list[tuple[list[dict[str, Any]], list[float]]],
) -> None:
    sums = [overflown for _, overflown in of_ranks]
    assert all(np.array_equal(each, sums[0], equal_nan=True) for each in sums)
    assert np.isfinite(sums[0]).tolist() == [False, False, False, True] and sums[0][3] == 3.0
