"""Commits: nothing before the manifest, old ones removed after it, incomplete parts refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.retention import Retention
from onward.checkpoints.sharded.commit import commit, discard
from onward.checkpoints.sharded.lease import take_lease
from onward.checkpoints.sharded.newest import list_checkpoints
from onward.checkpoints.sharded.part_files import read_part, write_part
from onward.checkpoints.sharded.pieces import whole_pieces
from onward.checkpoints.sharded.save_folders import SaveFolder
from onward.checkpoints.sharded.sharded_checkpoint import open_checkpoint
from onward.errors import CheckpointError
from tests.checkpoints.sharded.sharded_folders import DISK, UnsyncedDisk, pieces, save

TENSORS = {"w": np.arange(10.0), "b": np.arange(3)}
WHOLE = [{"w": [(0, 10)], "b": [(0, 3)]}]


def steps(folder: Path) -> list[int]:
    return [each.step for each in list_checkpoints(folder) if not each.problem]


def test_parts_without_a_manifest_are_no_checkpoint(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, "it", disk=DISK)
    place = SaveFolder(tmp_path, 3, 1, 1)
    digest = write_part(place, 0, whole_pieces(TENSORS), disk=DISK)
    assert steps(tmp_path) == []
    assert read_part(place, 0).sha256 == digest
    assert commit(place, [digest], {"n": 1}, lease=lease, disk=DISK) == place.path
    assert steps(tmp_path) == [3]
    discard(place, disk=DISK)  # not what is committed
    assert open_checkpoint(place.path).properties == {"n": 1}


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ([{"w": [(0, 4)]}, {"w": [(5, 10)]}], r"elements \[4, 5\) of tensor 'w' are in no part"),
        ([{"w": [(0, 6)]}, {"w": [(5, 10)]}], r"elements \[5, 6\) of tensor 'w' are in several"),
        ([{"w": [(0, 6)]}, {}], r"elements \[6, 10\) of tensor 'w' are in no part\nlet the ranks"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, layout: Any, text: str) -> None:
    lease = take_lease(tmp_path, "it", disk=DISK)
    with pytest.raises(CheckpointError, match=text):
        save(lease, TENSORS, 1, layout)
    assert steps(tmp_path) == []


def test_a_part_of_another_save_is_refused(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, "it", disk=DISK)
    one, two = SaveFolder(tmp_path, 1, 1, 1), SaveFolder(tmp_path, 2, 1, 2)
    digest = write_part(one, 0, whole_pieces(TENSORS), disk=DISK)
    with pytest.raises(
        CheckpointError, match=r"part-00000.safetensors: not what rank 0 has written"
    ):
        commit(one, ["0" * 64], {}, lease=lease, disk=DISK)
    one.path.rename(two.path)
    with pytest.raises(CheckpointError, match=r"is not saved: .*it is of another save\ncheck the"):
        commit(two, [digest], {}, lease=lease, disk=DISK)


def test_ranks_that_disagree_about_a_tensor_are_refused(tmp_path: Path) -> None:
    lease, place = take_lease(tmp_path, "it", disk=DISK), SaveFolder(tmp_path, 1, 1, 1)
    one = write_part(place, 0, pieces({"w": np.zeros(4)}, {"w": [(0, 2)]}), disk=DISK)
    two = write_part(place, 1, pieces({"w": np.zeros((2, 2))}, {"w": [(2, 4)]}), disk=DISK)
    with pytest.raises(CheckpointError, match="save the same model on every rank"):
        commit(place, [one, two], {}, lease=lease, disk=DISK)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    lease, retention = take_lease(tmp_path, "it", disk=DISK), Retention(keep=2, keep_best=1)
    for step, metric in enumerate([5.0, 1.0, 3.0, 2.0, 4.0], 1):
        save(lease, TENSORS, step, WHOLE, serial=step, retention=retention, metric=metric)
    assert steps(tmp_path) == [2, 4, 5]


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, "it", disk=DISK)
    for serial, step in enumerate([1, 2, 1], 1):
        save(lease, TENSORS, step, WHOLE, serial=serial, retention=Retention(keep=None))
    assert [(each.step, each.serial) for each in list_checkpoints(tmp_path)] == [(2, 2), (1, 3)]


def test_old_checkpoints_are_removed_after_the_new_one_is_durable(tmp_path: Path) -> None:
    lease, done = take_lease(tmp_path, "it", disk=DISK), []

    class Watched(UnsyncedDisk):
        def commit(self, file: Any, path: Path) -> None:
            done.append("commit")
            super().commit(file, path)

        def sync_folder(self, folder: Path) -> None:
            done.append(f"sync {folder.name[:17]}")

        def remove(self, path: Path) -> None:
            done.append(f"remove {path.name}")
            super().remove(path)

    save(lease, TENSORS, 1, WHOLE)
    place = SaveFolder(tmp_path, 2, 1, 2)
    digest = write_part(place, 0, whole_pieces(TENSORS), disk=DISK)
    commit(place, [digest], {}, lease=lease, retention=Retention(keep=1), disk=Watched())
    assert done == [
        "commit", "sync step-000000000002",
        "remove manifest.json", "sync step-000000000001", "remove part-00000.safetensors",
    ]  # fmt: skip
    assert steps(tmp_path) == [2]


def test_what_unfinished_saves_left_is_removed(tmp_path: Path) -> None:
    old = take_lease(tmp_path, "old", disk=DISK)
    place = SaveFolder(tmp_path, 9, old.token, 4)
    write_part(place, 1, whole_pieces(TENSORS), disk=DISK)
    (place.path / ".onward-0123456789abcdef.part").write_bytes(b"half")
    new = take_lease(tmp_path, "new", disk=DISK)
    save(new, TENSORS, 1, WHOLE, serial=5, retention=Retention())
    assert not place.path.exists()


def test_a_damaged_manifest_costs_no_other_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lease = take_lease(tmp_path, "it", disk=DISK)
    first = save(lease, TENSORS, 1, WHOLE)
    (first / "manifest.json").write_bytes(b"{}")
    with caplog.at_level(logging.WARNING, "onward"):
        for step in (2, 3):
            save(lease, TENSORS, step, WHOLE, serial=step, retention=Retention(keep=1))
    assert "manifest.json is damaged" in caplog.text
    assert steps(tmp_path) == [3] and first.exists()


def test_properties_that_are_not_json_are_refused(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, "it", disk=DISK)
    with pytest.raises(CheckpointError, match="which JSON does not have"):
        save(lease, TENSORS, 1, WHOLE, properties={"a": np.zeros(2)})
    assert steps(tmp_path) == []
