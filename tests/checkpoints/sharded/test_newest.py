"""The newest checkpoint of a folder, for those who only read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.retention import Retention
from onward.checkpoints.sharded import newest
from onward.checkpoints.sharded.lease import take_lease
from onward.checkpoints.sharded.newest import open_best, open_newest, read_newest
from onward.checkpoints.sharded.save_folders import parse_save_folder, remove_save
from onward.errors import CheckpointCorrupt
from tests.checkpoints.sharded.sharded_folders import DISK, save

HALVES = [{"w": [(0, 2)]}, {"w": [(2, 4)]}]


def tensors(step: int) -> dict[str, Any]:
    return {"w": np.full(4, step, np.float32)}


def saved(folder: Path, *metrics: float) -> list[Path]:
    lease = take_lease(folder, "it", disk=DISK)
    return [
        save(lease, tensors(step), step, HALVES, serial=step, metric=metric)
        for step, metric in enumerate(metrics, 1)
    ]


def test_newest_and_best(tmp_path: Path) -> None:
    assert open_newest(tmp_path) is None and open_newest(tmp_path / "none") is None
    saved(tmp_path, 2.0, 1.0, 3.0)
    found = read_newest(tmp_path)
    assert found is not None and found.step == 3 and found.tensors["w"].tolist() == [3.0] * 4
    for retention, step in ((Retention(), 2), (Retention(better="higher"), 3)):
        best = open_best(tmp_path, retention)
        assert best is not None and best.step == step


def test_reading_leaves_the_run_to_its_owner(tmp_path: Path) -> None:
    saved(tmp_path, 1.0)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    open_newest(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_damaged_newest_is_named_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = saved(tmp_path, 1.0, 2.0, 3.0)
    (paths[2] / "manifest.json").unlink()
    part = paths[1] / "part-00001.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.WARNING, "onward"):
        found = open_newest(tmp_path)
    assert found is not None and found.step == 1
    assert "manifest.json is missing" in caplog.text and "tensor 'w[2:4]' is damaged" in caplog.text
    assert caplog.text.count("step 1 is used instead") == 2
    (paths[0] / "part-00000.safetensors").unlink()
    with pytest.raises(CheckpointCorrupt, match=r"none of its checkpoints can be read: .*missing"):
        open_newest(tmp_path)


def test_files_of_whole_tensors_are_found_and_count_as_older(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, disk=DISK)
    for step in (10, 20):
        checkpoints.save(tensors(step), {}, step, metric=1 / step)
    found = read_newest(tmp_path)
    assert found is not None and found.step == 20 and found.tensors["w"].tolist() == [20.0] * 4
    saved(tmp_path, 9.0)
    found, best = read_newest(tmp_path), open_best(tmp_path)
    assert found is not None and found.step == 1 and best is not None and best.step == 20


def test_a_checkpoint_that_is_removed_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that trains saves the next one, and removes the one that was just opened."""
    paths, opened = saved(tmp_path, 1.0, 2.0), []

    def open_then_remove(folder: Path, **given: Any) -> Any:
        opened.append(open_newest(folder, **given))
        if len(opened) == 1:
            place = parse_save_folder(tmp_path, paths[1].name)
            assert place is not None
            remove_save(place, DISK)
        return opened[-1]

    monkeypatch.setattr(newest, "open_newest", open_then_remove)
    found = read_newest(tmp_path)
    assert found is not None and found.step == 1 and len(opened) == 2


def test_a_renamed_folder_is_not_what_it_says(tmp_path: Path) -> None:
    paths = saved(tmp_path, 1.0)
    paths[0].rename(tmp_path / "step-000000000008-token-1-save-9")
    with pytest.raises(CheckpointCorrupt, match="its manifest is of step 1, token 1, save 1"):
        open_newest(tmp_path)
