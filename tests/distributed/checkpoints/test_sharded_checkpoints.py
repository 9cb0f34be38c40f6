"""ShardedCheckpoints: all ranks save, choose and fail alike; saves may go on in a thread."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from conformance.reliability.thread_ranks import ThreadRank, run_ranks
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.sharded.newest import list_checkpoints, read_newest
from onward.checkpoints.sharded.pieces import Piece, whole_pieces
from onward.distributed.checkpoints.sharded_checkpoints import ShardedCheckpoints
from onward.distributed.communicator import Communicator
from onward.errors import CheckpointCorrupt, CheckpointError, OptionError, RunFenced
from tests.checkpoints.sharded.sharded_folders import DISK, UnsyncedDisk
from tests.distributed.group_of_processes import run_processes

T = TypeVar("T")


def tensors(step: int) -> dict[str, Any]:
    return {"w": np.arange(10, dtype=np.float32).reshape(2, 5) * step, "count": np.array(step)}


def pieces(step: int, rank: int, size: int) -> dict[str, Piece]:
    """The tensor `w` in shards, and `count` on every rank."""
    low, high = 10 * rank // size, 10 * (rank + 1) // size
    whole = whole_pieces(tensors(step))
    return {"w": whole["w"].cut((low, high)), "count": whole["count"]}


def group_of(folder: Path, group: Any, **given: Any) -> ShardedCheckpoints:
    return ShardedCheckpoints(folder, communicator=group, **{"disk": DISK, **given})


def save_all(folder: Path, size: int, *steps: int, **given: Any) -> None:
    def save(group: ThreadRank) -> None:
        checkpoints = group_of(folder, group, **given)
        for step in steps:
            checkpoints.save(pieces(step, group.rank, size), {"at": step}, step)

    run_ranks(size, save)


def on_ranks(
    folder: Path, size: int, do: Callable[[ShardedCheckpoints], T], **given: Any
) -> list[T]:
    return run_ranks(size, lambda group: do(group_of(folder, group, **given)))


# -- saving and loading ----------------------------------------------------------------------------


def test_four_ranks_to_three_to_one(tmp_path: Path) -> None:
    save_all(tmp_path, 4, 1, 2)

    def read_shard(group: ThreadRank) -> Any:
        found = group_of(tmp_path, group).latest()
        assert found is not None and found.step == 2 and found.properties == {"at": 2}
        low, high = pieces(2, group.rank, 3)["w"].span
        return found.read_range("w", low, high)

    assert np.array_equal(np.concatenate(run_ranks(3, read_shard)), tensors(2)["w"].reshape(-1))
    whole = read_newest(tmp_path)
    assert whole is not None and np.array_equal(whole.tensors["w"], tensors(2)["w"])
    Checkpoints(tmp_path / "single", disk=DISK).save(whole.tensors, whole.properties, 2)
    back = on_ranks(tmp_path / "single", 2, lambda each: each.latest())
    assert all(np.array_equal(found.read_tensor("w"), tensors(2)["w"]) for found in back if found)
    assert None not in back


def test_replicated_tensors_are_written_once(tmp_path: Path) -> None:
    big = {"w": np.zeros(1 << 18, np.float32)}

    def save(group: ThreadRank) -> int:
        path = group_of(tmp_path, group).save(whole_pieces(big), {}, 1)
        return (path / f"part-{group.rank:05d}.safetensors").stat().st_size

    sizes = run_ranks(4, save)
    assert all(abs(size - (1 << 18)) < 2000 for size in sizes)  # a quarter of a MiB each


def test_one_process_needs_no_communicator(tmp_path: Path) -> None:
    checkpoints = ShardedCheckpoints(tmp_path, keep=2, keep_best=1, every=2, disk=DISK)
    assert checkpoints.latest() is None and checkpoints.best() is None
    for step, metric in enumerate([5.0, 1.0, 3.0, 4.0], 1):
        checkpoints.save(whole_pieces(tensors(step)), {}, step, metric)
    assert checkpoints.steps() == [2, 3, 4] and checkpoints.due(4) and not checkpoints.due(3)
    best, loaded = checkpoints.best(), checkpoints.load(3)
    assert best is not None and best.step == 2 and best.metric == 1.0
    assert np.array_equal(loaded.read_tensor("w"), tensors(3)["w"])
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 9\nthere are: 2, 3, 4"):
        checkpoints.load(9)
    with pytest.raises(OptionError, match="keep must be None or a number"):
        ShardedCheckpoints(tmp_path, keep=0)


def test_the_plan_is_made_again_when_what_is_held_changes(tmp_path: Path) -> None:
    def save(group: ThreadRank) -> None:
        checkpoints = group_of(tmp_path, group)
        checkpoints.save(pieces(1, group.rank, 2), {}, 1)
        checkpoints.save(pieces(2, 1 - group.rank, 2), {}, 2)  # the ranks change places

    run_ranks(2, save)
    found = read_newest(tmp_path)
    assert found is not None and np.array_equal(found.tensors["w"], tensors(2)["w"])


# -- damage and disagreement -----------------------------------------------------------------------


def flip_last(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_part_that_one_rank_cannot_read_makes_all_go_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_all(tmp_path, 3, 1, 2)
    [newest] = tmp_path.glob("step-000000000002-*")
    flip_last(newest / "part-00001.safetensors")
    with caplog.at_level(logging.WARNING, "onward"):
        found = on_ranks(tmp_path, 2, lambda each: each.latest())
    assert [each and each.step for each in found] == [1, 1]
    assert len(caplog.records) == 1  # one log
    assert "rank 1: " in caplog.text and "part-00001.safetensors: tensor" in caplog.text
    assert "step 1 is used instead" in caplog.text


def test_a_folder_that_one_rank_does_not_see(tmp_path: Path) -> None:
    """The file system of a machine is not mounted: no rank goes on alone."""
    save_all(tmp_path / "shared", 2, 1)

    def find(group: ThreadRank) -> None:
        folder = tmp_path / ("shared" if group.rank == 0 else "elsewhere")
        with pytest.raises(CheckpointCorrupt, match=r"can be read: rank 1: .*elsewhere"):
            group_of(folder, group).latest()

    run_ranks(2, find)


def test_damaged_checkpoints_are_not_counted_as_kept(tmp_path: Path) -> None:
    save_all(tmp_path, 2, 1, 2, 3, keep=2, keep_best=0)
    [newest] = tmp_path.glob("step-000000000003-*")
    flip_last(newest / "part-00000.safetensors")

    def save_next(group: ThreadRank) -> list[int]:
        checkpoints = group_of(tmp_path, group, keep=2, keep_best=0)
        assert checkpoints.latest()
        checkpoints.save(pieces(4, group.rank, 2), {}, 4)
        return checkpoints.steps()

    assert run_ranks(2, save_next) == [[2, 4], [2, 4]]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda rank: (pieces(1, rank, 2), {}, 1 + rank), "rank 0 saves step 1, and another rank"),
        (lambda rank: (pieces(1, rank, 2), {}, -rank), "rank 1: a checkpoint's step must be"),
        (
            lambda rank: (pieces(1, rank, 2), {"a": {1} if rank else 1}, 1),
            "rank 1: .*JSON does not",
        ),
        (
            lambda rank: (pieces(1, 0, 2), {}, 1),
            r"elements \[5, 10\) of tensor 'w' .* are on no rank",
        ),
        (
            lambda rank: ({"w": rank or []}, {}, 1),
            r"rank 1: TypeError: 'int' object is not iterable",
        ),
    ],
)
def test_a_mistake_of_one_rank_is_an_error_on_all(tmp_path: Path, wrong: Any, text: str) -> None:
    def save(group: ThreadRank) -> str:
        checkpoints = group_of(tmp_path, group)
        with pytest.raises(CheckpointError, match=text) as caught:
            checkpoints.save(*wrong(group.rank))
        checkpoints.save(pieces(5, group.rank, 2), {}, 5)  # the group goes on
        return str(caught.value)

    assert len(set(run_ranks(2, save))) == 1
    assert [each.step for each in list_checkpoints(tmp_path)] == [5]


class FullDisk(UnsyncedDisk):
    """A disk whose writes of large files fail while it is full."""

    full = True

    def write(self, file: Any, offset: int, data: memoryview) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(file, offset, data)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_training_goes_on_after_a_full_disk_of_one_rank(
    tmp_path: Path, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    save_all(tmp_path, 2, 1)
    disk = FullDisk()

    def train(group: ThreadRank) -> list[str]:
        given = {"disk": disk} if group.rank == 1 else {}
        checkpoints = group_of(tmp_path, group, asynchronous=asynchronous, **given)
        first = checkpoints.try_save(pieces(2, group.rank, 2), {}, 2)
        assert (first is None) != asynchronous
        checkpoints.commit_pending()
        found = checkpoints.latest()
        assert found is not None and found.step == 1
        disk.full = False
        checkpoints.try_save(pieces(3, group.rank, 2), {}, 3)
        checkpoints.close()
        return [str(error) for error in checkpoints.failures]

    one, two = run_ranks(2, train)
    assert one == two and len(one) == 1
    assert "rank 1: " in one[0] and "No space left on device (while writing)" in one[0]
    assert [each.step for each in list_checkpoints(tmp_path)] == [1, 3]  # nothing half written
    assert sum("No space left" in record.getMessage() for record in caplog.records) == 1


# -- asynchronous saves ----------------------------------------------------------------------------


class SlowDisk(UnsyncedDisk):
    """A disk that creates no file before it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def create(self, path: Path) -> Any:
        if path.parent.name.startswith("step-"):
            assert self.released.wait(120)
        return super().create(path)


def test_an_asynchronous_save_writes_what_was_given(tmp_path: Path) -> None:
    disk = SlowDisk()
    checkpoints = ShardedCheckpoints(tmp_path, asynchronous=True, disk=disk)
    vector = np.arange(4.0)
    path = checkpoints.save({"w": Piece(array=vector, start=0, shape=(4,))}, {}, 1)
    vector[:] = -1  # training goes on
    assert checkpoints.commit_pending(wait=False) is None and checkpoints.steps() == []
    disk.released.set()
    assert checkpoints.commit_pending() == path and checkpoints.commit_pending() is None
    found = checkpoints.latest()
    assert found is not None and found.read_tensor("w").tolist() == [0.0, 1.0, 2.0, 3.0]


def test_the_next_call_commits_an_asynchronous_save(tmp_path: Path) -> None:
    def train(group: ThreadRank) -> list[int]:
        with group_of(tmp_path, group, asynchronous=True, keep=None) as checkpoints:
            for step in (1, 2, 3):
                checkpoints.save(pieces(step, group.rank, 2), {}, step)
            assert checkpoints.steps() == [1, 2]
        return checkpoints.steps()

    assert run_ranks(2, train) == [[1, 2, 3]] * 2


def test_close_raises_the_error_of_an_asynchronous_save(tmp_path: Path) -> None:
    checkpoints = ShardedCheckpoints(tmp_path, asynchronous=True, disk=DISK)
    checkpoints.take_over()
    checkpoints._disk = FullDisk()
    checkpoints.save(whole_pieces(tensors(1)), {}, 1)
    with pytest.raises(CheckpointError, match=r"is not saved: No space left on device .*\nfree"):
        checkpoints.close()
    checkpoints.close()
    assert list_checkpoints(tmp_path) == []


def test_an_error_in_training_waits_for_the_thread_and_commits_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        ShardedCheckpoints(tmp_path, asynchronous=True, disk=DISK) as checkpoints,
    ):
        checkpoints.save(whole_pieces(tensors(1)), {}, 1)
        raise ZeroDivisionError
    assert checkpoints.steps() == []
    assert not [each for each in threading.enumerate() if each.name == "onward-checkpoint"]


# -- fencing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_older_group_is_refused_on_all_ranks(
    tmp_path: Path, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def be_replaced(group: ThreadRank) -> str:
        old = group_of(tmp_path, group, asynchronous=asynchronous)
        old.save(pieces(1, group.rank, 2), {}, 1)
        old.commit_pending()
        new = group_of(tmp_path, group)
        found = new.latest()
        assert found is not None and found.step == 1
        with pytest.raises(RunFenced) as caught:  # not try_save's to hide
            old.try_save(pieces(2, group.rank, 2), {}, 2)
            old.commit_pending()
        new.save(pieces(3, group.rank, 2), {}, 3)
        assert new.steps() == [1, 3]
        return str(caught.value)

    texts = run_ranks(2, be_replaced)
    assert texts[0] == texts[1]
    assert "owns the run now, with token 2" in texts[0] and "has token 1\nend" in texts[0]
    assert [record.getMessage() for record in caplog.records] == [texts[0]]


# -- processes -------------------------------------------------------------------------------------


def save_and_load(rank: int, folder: str) -> Any:
    checkpoints = ShardedCheckpoints(folder, communicator=Communicator())
    for step in (1, 2):
        checkpoints.save(pieces(step, rank, 2), {"at": step}, step)
    found = checkpoints.latest()
    assert found is not None
    return found.step, found.read_range("w", 3, 8).tolist()


@pytest.mark.integration
def test_gloo_processes_save_and_load_together(tmp_path: Path) -> None:
    assert run_processes(save_and_load, 2, str(tmp_path)) == [(2, [6.0, 8.0, 10.0, 12.0, 14.0])] * 2
