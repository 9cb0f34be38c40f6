"""RealDisk: locks, folders, reads and writes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onward.checkpoints.disk import DISK

HOLD = """
import sys
from pathlib import Path
from onward.checkpoints.disk import DISK
file = DISK.create(Path(sys.argv[1]))
with DISK.locked(Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""

TRY = """
import sys
from pathlib import Path
from onward.checkpoints.disk import DISK
with DISK.locked(Path(sys.argv[1])):
    print("mine")
"""


def test_another_process_waits_for_the_lock(tmp_path: Path) -> None:
    part, lock = tmp_path / "part", tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(part), str(lock)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdin is not None and holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert not DISK.is_abandoned(part) and not DISK.is_abandoned(lock)
    waiting = subprocess.Popen([sys.executable, "-c", TRY, str(lock)], stdout=subprocess.PIPE)
    holder.kill()
    holder.communicate()
    assert waiting.communicate()[0] == b"mine\n"
    assert DISK.is_abandoned(part)


def test_lock_can_be_acquired_again(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    for _ in range(2):
        with DISK.locked(lock):
            assert not DISK.is_abandoned(lock)
        assert DISK.is_abandoned(lock)


def test_a_file_is_created_once(tmp_path: Path) -> None:
    file = DISK.create(tmp_path / "f")
    with pytest.raises(FileExistsError):
        DISK.create(tmp_path / "f")
    DISK.close(file)


def test_make_folder_makes_parents(tmp_path: Path) -> None:
    DISK.make_folder(tmp_path / "a" / "b" / "c")
    DISK.make_folder(tmp_path / "a" / "b" / "c")
    assert DISK.names(tmp_path / "a" / "b") == ["c"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        DISK.make_folder(tmp_path / "file")


def test_read_stops_at_the_end_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    file = DISK.open(tmp_path / "f")
    buffer = bytearray(8)
    assert DISK.size(file) == 5
    assert DISK.read(file, 3, memoryview(buffer)) == 2 and buffer[:2] == b"45"
    DISK.close(file)


def test_write_at_offset_and_commit(tmp_path: Path) -> None:
    file = DISK.create(tmp_path / "f")
    DISK.write(file, 3, memoryview(b"de"))
    DISK.write(file, 0, memoryview(b"abc"))
    DISK.sync(file)
    DISK.commit(file, tmp_path / "g")
    DISK.sync_folder(tmp_path)
    assert DISK.names(tmp_path) == ["g"] and (tmp_path / "g").read_bytes() == b"abcde"
    DISK.remove(tmp_path / "g")
    assert DISK.free(tmp_path) > 0 and not DISK.names(tmp_path)


def test_unsupported_folder_sync_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    number = errno.EINVAL
    DISK.sync_folder(tmp_path)
    number = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        DISK.sync_folder(tmp_path)
