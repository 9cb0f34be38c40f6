"""Leases: tokens only grow, and an older group is refused, also between check and rename."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.folder import LOCK
from onward.checkpoints.sharded.commit import commit
from onward.checkpoints.sharded.lease import check_lease, take_lease
from onward.checkpoints.sharded.newest import list_checkpoints
from onward.checkpoints.sharded.part_files import write_part
from onward.checkpoints.sharded.pieces import whole_pieces
from onward.checkpoints.sharded.save_folders import SaveFolder
from onward.errors import CheckpointError, RunFenced
from tests.checkpoints.sharded.sharded_folders import DISK, UnsyncedDisk, save

TENSORS = {"w": np.arange(4.0)}
WHOLE = [{"w": [(0, 4)]}]


def committed(folder: Path) -> list[tuple[int, int]]:
    return [(e.save.token, e.step) for e in list_checkpoints(folder) if e.save and not e.problem]


def test_every_group_takes_a_later_token(tmp_path: Path) -> None:
    leases = [take_lease(tmp_path / "run", f"group {n}", disk=DISK) for n in range(3)]
    assert [lease.token for lease in leases] == [1, 2, 3]
    assert [path.name for path in (tmp_path / "run").glob("owner-*")] == [leases[2].name]
    check_lease(leases[2], "it", DISK)
    for lease in leases[:2]:
        with pytest.raises(RunFenced, match="group 2 owns the run now, with token 3; group"):
            check_lease(lease, "it", DISK)


def test_an_older_group_commits_nothing_and_loses_nothing(tmp_path: Path) -> None:
    old = take_lease(tmp_path, "the old group", disk=DISK)
    save(old, TENSORS, 1, WHOLE)
    new = take_lease(tmp_path, "the new group", disk=DISK)
    with pytest.raises(
        RunFenced, match=r"step-000000000002-token-1-save-2 is not saved: the new gr"
    ):
        save(old, TENSORS, 2, WHOLE, serial=2)
    assert committed(tmp_path) == [(1, 1)]
    save(new, TENSORS, 2, WHOLE, serial=2)
    assert committed(tmp_path) == [(1, 1), (2, 2)]


def test_a_group_whose_parts_were_removed_learns_who_owns_the_run(tmp_path: Path) -> None:
    old = take_lease(tmp_path, "old", disk=DISK)
    place = SaveFolder(tmp_path, 5, old.token, 1)
    digest = write_part(place, 0, whole_pieces(TENSORS), disk=DISK)
    take_lease(tmp_path, "new", disk=DISK)
    (place.path / "part-00000.safetensors").unlink()
    with pytest.raises(RunFenced, match="new owns the run now"):
        commit(place, [digest], {}, lease=old, disk=DISK)


def test_tokens_grow_even_if_the_file_of_the_last_is_lost(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, "first", disk=DISK)
    save(lease, TENSORS, 1, WHOLE)
    lease.path.unlink()
    with pytest.raises(
        RunFenced, match=r"owner-000001-\w+\.json is gone, by which it owned the run"
    ):
        save(lease, TENSORS, 2, WHOLE, serial=2)
    assert take_lease(tmp_path, "second", disk=DISK).token == 2


def test_two_groups_with_one_token_are_distinguished(tmp_path: Path) -> None:
    one = take_lease(tmp_path, "one", disk=DISK)
    one.path.unlink()  # nothing else shows that there was a token
    two = take_lease(tmp_path, "two", disk=DISK)
    assert two.token == one.token
    check_lease(two, "it", DISK)
    with pytest.raises(RunFenced):
        check_lease(one, "it", DISK)


def test_a_damaged_file_of_the_owner_still_fences(tmp_path: Path) -> None:
    old = take_lease(tmp_path, "old", disk=DISK)
    take_lease(tmp_path, "new", disk=DISK).path.write_bytes(b"\xff")
    with pytest.raises(RunFenced, match="another group owns the run now, with token 2"):
        check_lease(old, "it", DISK)


@pytest.mark.skipif(sys.platform == "win32", reason="the lock cannot be looked at")
def test_check_and_rename_happen_under_one_lock(tmp_path: Path) -> None:
    """A group that tries to take the run over between the two waits until both are done."""
    old = take_lease(tmp_path, "old", disk=DISK)
    order: list[str] = []

    def take() -> None:
        order.append(f"token {take_lease(tmp_path, 'new', disk=DISK).token}")

    thread = threading.Thread(target=take)

    class Between(UnsyncedDisk):
        def commit(self, file: Any, path: Path) -> None:
            if path.name == "manifest.json":
                thread.start()
                assert not DISK.is_abandoned(tmp_path / LOCK)
                assert [p.name for p in tmp_path.glob("owner-*")] == [old.name]
            super().commit(file, path)
            order.append("renamed")

    place = SaveFolder(tmp_path, 1, old.token, 1)
    digest = write_part(place, 0, whole_pieces(TENSORS), disk=DISK)
    commit(place, [digest], {}, lease=old, disk=Between())
    thread.join()
    assert order == ["renamed", "token 2"]
    assert committed(tmp_path) == [(1, 1)]
    with pytest.raises(RunFenced):
        save(old, TENSORS, 2, WHOLE, serial=2)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"run.owner\.json is not saved: "):
        take_lease(tmp_path / "file" / "run", "it", disk=DISK)


SAVE_ON = """
import sys
import numpy as np
from onward.checkpoints.sharded.pieces import whole_pieces
from onward.distributed.checkpoints.sharded_checkpoints import ShardedCheckpoints
from onward.errors import RunFenced
checkpoints = ShardedCheckpoints(sys.argv[1], keep=None)
step = 0
try:
    while True:
        step += 1
        checkpoints.save(whole_pieces({"w": np.full(4, step)}), {}, step)
        print("saved", step, flush=True)
except RunFenced as error:
    print("fenced:", error, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP is POSIX's")
def test_a_stopped_process_that_wakes_up_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAVE_ON, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as old:
        assert old.stdout is not None and old.stdout.readline() == "saved 1\n"
        with DISK.locked(tmp_path / LOCK):  # so that it is not stopped in the midst of a commit
            old.send_signal(signal.SIGSTOP)
        new = take_lease(tmp_path, "the new group", disk=DISK)
        before = committed(tmp_path)
        save(new, TENSORS, 1000, WHOLE, serial=1000)
        old.send_signal(signal.SIGCONT)
        printed, _ = old.communicate(timeout=120)
    assert "fenced:" in printed and "the new group owns the run now, with token 2" in printed
    assert committed(tmp_path) == [*before, (2, 1000)]
