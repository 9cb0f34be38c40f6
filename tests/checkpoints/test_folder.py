"""Checkpoints keeps the newest and the best, skips damaged ones, and loses nothing on failure."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.checkpoints.disk import RealDisk
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.manifest import file_name
from onward.checkpoints.tensor_files import read, write
from onward.errors import CheckpointCorrupt, CheckpointError, OptionError


def tensors(step: int) -> dict[str, Any]:
    return {"w": np.full(5, step, np.float32), "b": np.arange(step % 7)}


def saved(folder: Path, *steps: int, **settings: Any) -> Checkpoints:
    checkpoints = Checkpoints(folder, **settings)
    for step in steps:
        checkpoints.save(tensors(step), {"at": step}, step)
    return checkpoints


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# -- saving and keeping ----------------------------------------------------------------------------


def test_the_last_save_is_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "runs" / "7")
    assert checkpoints.latest() is None and checkpoints.best() is None
    assert checkpoints.steps() == []
    path = checkpoints.save(tensors(3), {"at": 3}, 3)
    assert path == tmp_path / "runs" / "7" / "step-000000000003.safetensors"
    found = checkpoints.latest()
    assert found is not None and found.properties == {"at": 3} and found.step == 3
    assert np.array_equal(found.tensors["w"], tensors(3)["w"]) and found.path == path


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_best=1)
    for step, metric in enumerate([5.0, 1.0, 3.0, 2.0, 4.0], 1):
        checkpoints.save(tensors(step), {}, step, metric)
    assert checkpoints.steps() == [2, 4, 5]
    best = checkpoints.best()
    assert best is not None and best.step == 2 and best.metric == 1.0


def test_the_best_may_be_the_highest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=2, better="higher")
    for step, metric in enumerate([5.0, 1.0, 5.0, 4.0, float("nan"), None], 1):
        checkpoints.save(tensors(step), {}, step, metric)
    assert checkpoints.steps() == [1, 3, 6]
    best = checkpoints.best()
    assert best is not None and best.step == 3  # of equals, the newer


def test_keep_none_keeps_all(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, *range(9), keep=None, keep_best=0)
    assert checkpoints.steps() == list(range(9)) and checkpoints.best() is None


def test_the_newest_is_the_last_save_of_any_step(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20, 30, 15, keep=2)
    found = checkpoints.latest()
    assert found is not None and found.step == 15
    assert checkpoints.steps() == [15, 30]


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    checkpoints.save({"w": np.ones(1)}, {"again": True}, 1)
    assert checkpoints.load(1).properties == {"again": True}
    found = checkpoints.latest()
    assert found is not None and found.step == 1


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 5)), min_size=1, max_size=9),
    st.integers(1, 3), st.integers(0, 2), st.sampled_from(["lower", "higher"]),
)  # fmt: skip
def test_kept_checkpoints_match_a_list_model(
    tmp_path_factory: pytest.TempPathFactory, saves: Any, keep: int, keep_best: int, better: Any
) -> None:
    class Unsynced(RealDisk):
        def sync(self, file: Any) -> None: ...
        def sync_folder(self, folder: Path) -> None: ...

    folder = tmp_path_factory.mktemp("kept")
    checkpoints = Checkpoints(
        folder, keep=keep, keep_best=keep_best, better=better, disk=Unsynced()
    )
    held: list[tuple[int, float | None, int]] = []
    for number, (step, metric) in enumerate(saves):
        checkpoints.save({"n": np.array(number)}, {}, step, metric)
        held = [(s, m, n) for s, m, n in held if s != step] + [(step, metric, number)]
        sign = 1 if better == "lower" else -1
        rated = sorted((sign * m, -n) for _, m, n in held if m is not None)[:keep_best]
        best = {-n for _, n in rated}
        held = [row for row in held if row in held[-keep:] or row[2] in best]
        assert checkpoints.steps() == sorted(s for s, _, _ in held)
        found = checkpoints.latest()
        assert found is not None and found.tensors["n"] == number
    shutil.rmtree(folder)


def test_due_follows_every(tmp_path: Path) -> None:
    assert not any(Checkpoints(tmp_path).due(step) for step in range(10))
    assert [s for s in range(9) if Checkpoints(tmp_path, every=4).due(s)] == [4, 8]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"keep": 0}, "keep must be None or a number, 1 or more, not 0"),
        ({"keep_best": -1}, "keep_best must be a number, 0 or more, not -1"),
        ({"better": "smaller"}, "better must be 'lower' or 'higher', not 'smaller'"),
        ({"every": 0}, "every must be None or a number, 1 or more, not 0"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, settings: Any, text: str) -> None:
    with pytest.raises(OptionError, match=f"checkpoints: {text}"):
        Checkpoints(tmp_path, **settings)


def test_numpy_step_and_metric_are_accepted(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save({}, {}, np.int64(3), np.float32(0.5))  # type: ignore[arg-type]
    found = Checkpoints(tmp_path).best()
    assert found is not None and (found.step, found.metric) == (3, 0.5)


@pytest.mark.parametrize(
    ("step", "metric", "text"),
    [
        (-1, None, "a checkpoint's step must be a whole number, 0 or more, not -1"),
        (1.5, None, r"a checkpoint's step must be a whole number, 0 or more, not 1\.5"),
        (True, None, "a checkpoint's step must be a whole number, 0 or more, not True"),
        (1, "0.3", r"metric must be a number or None, not a str\nconvert it with float"),
    ],
)
def test_step_and_metric_must_be_numbers(tmp_path: Path, step: Any, metric: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        Checkpoints(tmp_path).save({}, {}, step, metric)


# -- damage ----------------------------------------------------------------------------------------


def test_damaged_checkpoint_is_skipped_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    damage(tmp_path / file_name(3))
    found = checkpoints.latest()
    assert found is not None and found.step == 2
    assert caplog.messages == [
        f"{tmp_path / file_name(3)}: tensor 'w' is damaged: its SHA-256 does not match; "
        "step 2 is used instead"
    ]
    with pytest.raises(CheckpointCorrupt, match="tensor 'w' is damaged"):
        checkpoints.load(3)


def test_missing_checkpoint_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    (tmp_path / file_name(3)).unlink()
    found = checkpoints.latest()
    assert found is not None and found.step == 2 and checkpoints.steps() == [1, 2]
    assert "000003.safetensors: there is no such file; step 2 is used instead" in caplog.text
    caplog.clear()
    checkpoints.save(tensors(4), {}, 4)
    assert "000003.safetensors: there is no such file" in caplog.text
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 3\nthere are: 1, 2, 4"):
        checkpoints.load(3)


def test_best_falls_back_to_the_next_best(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step, metric in enumerate([3.0, 1.0, 2.0], 1):
        checkpoints.save(tensors(step), {}, step, metric)
    damage(tmp_path / file_name(2))
    best = checkpoints.best()
    assert best is not None and best.step == 3 and "step 3 is used instead" in caplog.text


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3)
    damage(tmp_path / file_name(3))
    checkpoints.latest()
    checkpoints.save(tensors(4), {}, 4)
    assert checkpoints.steps() == [1, 2, 4]


def test_error_names_all_if_all_are_damaged(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    damage(tmp_path / file_name(1))
    (tmp_path / file_name(2)).unlink()
    with pytest.raises(CheckpointCorrupt) as caught:
        checkpoints.latest()
    assert str(caught.value) == (
        f"{tmp_path}: none of its checkpoints can be read: "
        f"{tmp_path / file_name(2)}: there is no such file; "
        f"{tmp_path / file_name(1)}: tensor 'w' is damaged: its SHA-256 does not match\n"
        "restore the folder from a copy, or start again in another one"
    )


def test_replaced_checkpoint_is_detected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    write(tmp_path / file_name(2), {"w": np.zeros(3)}, {}, step=2, serial=2)
    found = checkpoints.latest()
    assert found is not None and found.step == 1
    assert (
        "not damaged, but not the checkpoint that manifest.json lists; step 1 is used"
        in caplog.text
    )
    with pytest.raises(CheckpointCorrupt, match=r"\nif it is meant to be there, remove .*manifest"):
        checkpoints.load(2)
    (tmp_path / "manifest.json").unlink()
    assert checkpoints.load(2).tensors["w"].shape == (3,)


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (lambda path: path.unlink(), "manifest.json is missing"),
        (lambda path: path.write_bytes(b""), "manifest.json is damaged: it is not a manifest"),
        (lambda path: damage(path), "manifest.json is damaged: it"),
        (lambda path: (path.unlink(), path.mkdir()), "manifest.json cannot be read: not an ordin"),
        (lambda path: os.truncate(path, 65 << 20), "manifest.json is damaged: it has 68,157,440"),
    ],
)
def test_lost_manifest_loses_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, break_it: Any, text: str
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, metric in ((30, 1.0), (10, 2.0), (20, 3.0)):
        checkpoints.save(tensors(step), {}, step, metric)
    break_it(tmp_path / "manifest.json")
    found, best = checkpoints.latest(), checkpoints.best()
    assert found is not None and found.step == 20 and best is not None and best.step == 30
    assert f"{text}" in caplog.text
    assert "; the files themselves are read instead" in caplog.text
    if not (tmp_path / "manifest.json").is_dir():
        checkpoints.save(tensors(40), {}, 40, 0.5)
        caplog.clear()
        assert checkpoints.steps() == [20, 40] and not caplog.messages


def test_other_files_are_not_touched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / file_name(7)).write_bytes(b"mine")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    with pytest.raises(
        CheckpointCorrupt, match=r"none of its checkpoints can be read.*header does"
    ):
        Checkpoints(tmp_path).latest()
    checkpoints = saved(tmp_path, 1, 2, 3, keep=1)
    found = checkpoints.latest()
    assert found is not None and found.step == 3
    assert (tmp_path / file_name(7)).read_bytes() == b"mine" and "000007" in caplog.text
    shutil.copy(tmp_path / file_name(3), tmp_path / file_name(8))
    with pytest.raises(CheckpointCorrupt, match="the header does not fit"):
        checkpoints.load(7)
    checkpoints.latest()
    assert f"{file_name(8)}: its name says step 8, but it holds 3; step 3 is used" in caplog.text


# -- disk failures ---------------------------------------------------------------------------------


class Failing(RealDisk):
    """A disk on which an operation fails for files of one name."""

    def __init__(self, operation: str, name: str, number: int = errno.EIO) -> None:
        real = getattr(self, operation)

        def maybe(*arguments: Any) -> Any:
            if any(name in str(getattr(each, "path", each)) for each in arguments):
                raise OSError(number, os.strerror(number))
            return real(*arguments)

        setattr(self, operation, maybe)


def test_try_save_continues_after_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 1)
    checkpoints = Checkpoints(tmp_path, disk=Failing("write", ".part", errno.ENOSPC))
    assert checkpoints.try_save(tensors(2), {}, 2) is None
    [error] = checkpoints.failures
    assert f"{file_name(2)} is not saved: No space left on device" in str(error)
    assert caplog.messages == [str(error)]
    with pytest.raises(CheckpointError, match=r"\nfree .* bytes on the disk of"):
        checkpoints.save(tensors(2), {}, 2)
    assert Checkpoints(tmp_path).steps() == [1]
    assert sorted(os.listdir(tmp_path)) == [".lock", "manifest.json", file_name(1)]
    assert Checkpoints(tmp_path).try_save(tensors(2), {}, 2) == tmp_path / file_name(2)


def test_failed_manifest_write_is_reported_and_removes_nothing(
    tmp_path: Path,
) -> None:
    saved(tmp_path, 1, keep=1)
    failing = Checkpoints(tmp_path, keep=1, disk=Failing("commit", "manifest.json"))
    with pytest.raises(CheckpointError, match=r"manifest\.json is not saved: Input/output error"):
        failing.save(tensors(2), {}, 2)
    assert Checkpoints(tmp_path).steps() == [1, 2]


def test_failed_removal_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, 1, keep=1)
    checkpoints = Checkpoints(tmp_path, keep=1, disk=Failing("remove", file_name(1), errno.EPERM))
    checkpoints.save(tensors(2), {}, 2)
    assert (
        f"{file_name(1)} is unused, but cannot be removed: Operation not permitted" in caplog.text
    )
    saved(tmp_path, 3, keep=1)
    assert Checkpoints(tmp_path).steps() == [3]


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"000001.*is not saved.*\(while locking the folder\)"
    ):
        Checkpoints(tmp_path / "file").save({}, {}, 1)
    disk = Failing("names", str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"the folder .* cannot be read: Input/output error\ncheck"
    ):
        Checkpoints(tmp_path, disk=disk).steps()


def test_read_error_does_not_remove_a_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, keep=2)
    checkpoints = Checkpoints(tmp_path, keep=2, disk=Failing("read", file_name(2)))
    found = checkpoints.latest()
    assert found is not None and found.step == 1
    checkpoints.save(tensors(3), {}, 3)
    assert checkpoints.steps() == [2, 3]


# -- concurrent saves ------------------------------------------------------------------------------

SAVER = """
import sys
import numpy as np
from onward.checkpoints.folder import Checkpoints
who = int(sys.argv[2])
checkpoints = Checkpoints(sys.argv[1], keep=3, keep_best=1)
for number in range(15):
    step = 2 * number + who
    w = np.full(1000, step, np.float32)
    checkpoints.save({"w": w}, {"who": who}, step, metric=100.0 - step)
    found = checkpoints.latest()
    assert (found.tensors["w"] == found.step).all() and found.step % 2 == found.properties["who"]
"""


def test_two_processes_can_save_into_one_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SAVER, str(tmp_path)]
    savers = [subprocess.Popen([*command, str(who)], stderr=subprocess.PIPE) for who in (0, 1)]
    errors = [saver.communicate()[1] for saver in savers]
    assert [saver.returncode for saver in savers] == [0, 0], errors
    checkpoints = Checkpoints(tmp_path)
    assert len(checkpoints.steps()) in (3, 4)
    for step in checkpoints.steps():
        assert (checkpoints.load(step).tensors["w"] == step).all()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    assert {path.name for path in tmp_path.glob("step-*")} == {
        file_name(step) for step in checkpoints.steps()
    }


def test_threads_can_save_with_one_object(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=4)
    threads = [
        threading.Thread(target=checkpoints.save, args=(tensors(step), {}, step))
        for step in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checkpoints.steps()) == 4
    for step in checkpoints.steps():
        assert np.array_equal(checkpoints.load(step).tensors["w"], tensors(step)["w"])


def test_read_is_tried_again_if_another_process_removes_files(tmp_path: Path) -> None:
    class Overtaken(RealDisk):
        done = False

        def open(self, path: Path) -> Any:
            if not self.done and path.name == file_name(1):
                self.done = True
                saved(tmp_path, 2, keep=1)
            return super().open(path)

    saved(tmp_path, 1, keep=1)
    found = Checkpoints(tmp_path, keep=1, disk=Overtaken()).latest()
    assert found is not None and found.step == 2


def test_one_file_can_be_read_without_the_folder(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert read(tmp_path / file_name(5)).step == 5


def test_a_folder_that_is_none_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, why in (("file", "Not a directory"), ("x" * 300, "File name too long")):
        for ask in (Checkpoints(tmp_path / name).latest, Checkpoints(tmp_path / name).steps):
            with pytest.raises(CheckpointError, match=f"cannot be read: {why}"):
                ask()
    assert Checkpoints(tmp_path / "none").latest() is None
    assert Checkpoints(tmp_path / "file" / "none").latest() is None
