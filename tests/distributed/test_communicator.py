"""Collectives: their results, and the bytes that they are counted as."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch
from torch import distributed as dist

from onward.distributed.communicator import Communicator
from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import join_groups
from onward.errors import OptionError, PeerLost
from tests.distributed.group_of_processes import run_processes


def call_collectives(rank: int) -> dict[str, Any]:
    group = Communicator()
    summed = torch.full((4,), float(rank + 1))
    group.all_reduce(summed).wait()
    part, whole = torch.zeros(2), torch.arange(4.0) * (rank + 1)
    group.reduce_scatter(part, whole).wait()
    joined = torch.zeros(4)
    group.all_gather(joined, torch.full((2,), float(rank))).wait()
    given, received = torch.tensor([10.0 * rank, 10.0 * rank + 1]), torch.zeros(2)
    group.all_to_all(received, given).wait()
    copied = torch.tensor([float(rank)])
    group.broadcast(copied, 1).wait()
    return {
        "all_reduce": summed.tolist(),
        "reduce_scatter": part.tolist(),
        "all_gather": joined.tolist(),
        "all_to_all": received.tolist(),
        "broadcast": copied.tolist(),
        "sent": dict(group.sent),
    }


def test_collectives_and_their_bytes() -> None:
    for rank, found in enumerate(run_processes(call_collectives, 2)):
        sent = found.pop("sent")
        assert found == {
            "all_reduce": [3.0] * 4,
            "reduce_scatter": [[0.0, 3.0], [6.0, 9.0]][rank],
            "all_gather": [0.0, 0.0, 1.0, 1.0],
            "all_to_all": [[0.0, 10.0], [1.0, 11.0]][rank],
            "broadcast": [1.0],
        }
        assert sent["all_reduce"] == 16  # 2 * 16 bytes * 1/2
        assert sent["reduce_scatter"] == sent["all_gather"] == 8
        assert sent["all_to_all"] == 4
        assert sent.get("broadcast", 0) == 4 * rank


def lose_a_process(rank: int) -> tuple[str, int]:
    whole = join_groups(Parallel()).whole
    pids = whole.gather_objects(os.getpid())
    if rank == 1:  # killed when its result is written
        setattr(dist, "destroy_process_group", lambda: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010
        return "gone", 0
    with pytest.raises(PeerLost, match="another process of this run is gone") as caught:
        whole.all_reduce(torch.zeros(4)).wait()
    return str(caught.value), pids[1]


@pytest.mark.integration
def test_a_lost_process_is_named_as_such() -> None:
    text, pid = run_processes(lose_a_process, 2)[0]
    assert f"process 1 (pid {pid}) of this machine ended\n" in text and "--resume" in text


def ranks_of_groups(rank: int) -> tuple[list[int], list[int]]:
    groups = join_groups(Parallel(data=2, shard=2))
    return groups.shards.gather_objects(rank), groups.copies.gather_objects(rank)


@pytest.mark.integration
def test_hybrid_groups() -> None:
    found = run_processes(ranks_of_groups, 4)
    assert found == [([0, 1], [0, 2]), ([0, 1], [1, 3]), ([2, 3], [0, 2]), ([2, 3], [1, 3])]


def test_a_product_that_is_not_the_number_of_processes() -> None:
    with pytest.raises(OptionError, match=r"data 4 \* shard 2 = 8 does not fit 6 processes"):
        Parallel(data=4, shard=2).over(6)
    with pytest.raises(
        OptionError, match=r"shard 4 does not fit 6 processes\nstart a multiple of 4, or"
    ):
        Parallel(shard=4).over(6)
    with pytest.raises(OptionError, match="Parallel needs a launcher"):
        join_groups(Parallel())
