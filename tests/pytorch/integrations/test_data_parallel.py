"""Two processes with DDP and FSDP2 train as one process on the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import multiprocessing

from tests.forked_processes import forking_context
from tests.pytorch.integrations import two_processes
from tests.pytorch.integrations.small_nets import assert_close

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.start_processes(
        two_processes.work,
        (str(folder),),
        two_processes.PROCESSES,
        start_method=forking_context().get_start_method(),
    )
    return torch.load(folder / "found.pt")


def test_ddp_gives_the_gradients_of_the_whole_batch(found: dict[str, Any]) -> None:
    assert found["ddp"]["fallbacks"] == {}
    assert_close(found["ddp"]["gradients"], two_processes.train_alone(steps=1)[0])


def test_ddp_reduces_a_bucket_before_the_next_segment_runs(found: dict[str, Any]) -> None:
    events = found["ddp"]["events"]
    assert events.count("segment") == 3
    last = len(events) - 1 - events[::-1].index("segment")
    assert "bucket" in events[: events.index("segment", 1)], events
    assert "bucket" in events[last:], events


@pytest.mark.parametrize("way", ["whole", "blocks", "wrapped last"])
def test_fsdp2_trains_as_one_process_and_frees_parameters(found: dict[str, Any], way: str) -> None:
    gradients, parameters = two_processes.train_alone(steps=2)
    assert found[way]["sharded after forward"] == [True, True]
    assert_close(found[way]["gradients"], gradients)
    assert_close(found[way]["parameters"], dict(parameters))


def test_fsdp2_runs_on_captured_graphs(found: dict[str, Any]) -> None:
    assert found["whole"]["programs"] == [1] and found["whole"]["fallbacks"] == [{}]
    assert found["blocks"]["programs"] == [1, 1] and found["blocks"]["fallbacks"] == [{}, {}]
    assert found["wrapped last"]["programs"] == [2]  # one of each block
    assert list(found["wrapped last"]["fallbacks"][0]) == [""]
