"""The size of buckets, by measurement."""

from __future__ import annotations

import pytest

from onward.distributed.bucket_size import SIZES, choose_bucket_size, measure_bucket_size
from onward.distributed.communicator import Communicator
from onward.distributed.parallel import Parallel
from onward.errors import OptionError
from tests.distributed.group_of_processes import run_processes


def test_latency_alone_asks_for_the_largest() -> None:
    assert choose_bucket_size([1.0] * len(SIZES)) == SIZES[-1]


def test_bandwidth_alone_asks_for_the_smallest() -> None:
    assert choose_bucket_size([size * 1e-9 for size in SIZES]) == SIZES[0]


def measured(rank: int) -> int:
    return measure_bucket_size(Communicator())


@pytest.mark.integration
def test_processes_agree() -> None:
    first, second = run_processes(measured, 2)
    assert first == second and first in SIZES


def test_a_size_that_is_none() -> None:
    assert Parallel(bucket="auto").bucket == "auto"
    with pytest.raises(OptionError, match=r"Parallel\.bucket must be a whole number"):
        Parallel(bucket="large")  # type: ignore[arg-type]
