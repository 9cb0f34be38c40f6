"""The file operations that checkpoints use, one method each.

Tests record them, replay any prefix of them as after a loss of power, and make each one fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

if sys.platform != "win32":
    import fcntl

_BINARY = getattr(os, "O_BINARY", 0)
_PIECE = 1 << 22  # bytes of one system call, about the size of a CPU cache


@dataclass(frozen=True)
class OpenFile:
    """The descriptor of an open file, and its path."""

    number: int
    path: Path


class Disk(Protocol):
    """The file operations of checkpoints; `RealDisk` implements them."""

    def make_folder(self, folder: Path) -> None: ...
    def names(self, folder: Path) -> list[str]: ...
    def free(self, folder: Path) -> int: ...
    def create(self, path: Path) -> OpenFile: ...
    def open(self, path: Path) -> OpenFile: ...
    def size(self, file: OpenFile) -> int: ...
    def read(self, file: OpenFile, offset: int, into: memoryview) -> int: ...
    def write(self, file: OpenFile, offset: int, data: memoryview) -> None: ...
    def sync(self, file: OpenFile) -> None: ...
    def close(self, file: OpenFile) -> None: ...
    def commit(self, file: OpenFile, path: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def remove_folder(self, folder: Path) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...
    def is_abandoned(self, path: Path) -> bool: ...
    def locked(self, path: Path) -> contextlib.AbstractContextManager[None]: ...


class RealDisk:
    """The disk of this machine."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder and its parents durably; nothing if it exists."""
        if folder.is_dir():
            return
        if folder.parent != folder:
            self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # a parent may be traversable, but not readable
            self.sync_folder(folder.parent)

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted."""
        return sorted(os.listdir(folder))

    def free(self, folder: Path) -> int:
        """Free bytes on the folder's disk."""
        return shutil.disk_usage(folder).free

    def create(self, path: Path) -> OpenFile:
        """Create a file that is locked while it is open, to show that its writer is alive."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY
        file = OpenFile(os.open(path, flags, 0o666), path)
        if _try_lock(file.number) is False or not os.fstat(file.number).st_nlink:
            self.close(file)  # another process removed it between the two calls
            raise FileExistsError(errno.EEXIST, "taken by another process", str(path))
        return file

    def open(self, path: Path) -> OpenFile:
        """Open a regular file to read; refuse anything else, such as a pipe, without waiting."""
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY
        file = OpenFile(os.open(path, flags), path)
        if not stat.S_ISREG(os.fstat(file.number).st_mode):
            self.close(file)
            raise OSError(errno.EINVAL, "not an ordinary file", str(path))
        return file

    def size(self, file: OpenFile) -> int:
        """The size of a file in bytes."""
        return os.fstat(file.number).st_size

    def read(self, file: OpenFile, offset: int, into: memoryview) -> int:
        """Fill a buffer from an offset on; the number of bytes, fewer at the end of the file."""
        os.lseek(file.number, offset, os.SEEK_SET)
        done = 0
        while done < len(into):
            count = _read_piece(file.number, into[done : done + _PIECE])
            if not count:
                break
            done += count
        return done

    def write(self, file: OpenFile, offset: int, data: memoryview) -> None:
        """Write all bytes at an offset."""
        os.lseek(file.number, offset, os.SEEK_SET)
        while data:
            data = data[os.write(file.number, data[:_PIECE]) :]

    def sync(self, file: OpenFile) -> None:
        """Flush a file's bytes, so that they survive a loss of power."""
        if sys.platform == "darwin":
            fcntl.fcntl(file.number, fcntl.F_FULLFSYNC)  # fsync does not flush the drive's cache
        else:
            os.fsync(file.number)

    def close(self, file: OpenFile) -> None:
        """Unlock and close a file; a fork that still has it open then holds no lock."""
        _unlock(file.number)
        os.close(file.number)

    def commit(self, file: OpenFile, path: Path) -> None:
        """Rename a file atomically, replacing the file of that name, and close it."""
        if sys.platform == "win32":
            self.close(file)  # Windows does not rename an open file
            os.replace(file.path, path)
            return
        try:
            os.replace(file.path, path)  # still locked, so that no process removes it as abandoned
        finally:
            self.close(file)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(folder)

    def sync_folder(self, folder: Path) -> None:
        """Flush the names in a folder, so that they survive a loss of power."""
        if sys.platform == "win32":
            return  # Windows has no such call, and writes names in order
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some file systems do not support it, nor need it
                raise
        finally:
            os.close(number)

    def is_abandoned(self, path: Path) -> bool:
        """Whether the process that created this file has ended."""
        if sys.platform == "win32":
            return True  # Windows cannot remove an open file
        number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return _try_lock(number) is True
        finally:
            _unlock(number)
            os.close(number)

    @contextlib.contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Hold an exclusive lock, for one thread of one process at a time; wait for it."""
        number = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o666)
        try:
            if _try_lock(number) is False:
                _wait_for_lock(number)
            yield
        finally:
            _unlock(number)
            os.close(number)


if sys.platform == "win32":
    import msvcrt

    def _read_piece(number: int, into: memoryview) -> int:
        data = os.read(number, len(into))
        into[: len(data)] = data
        return len(data)

    def _try_lock(number: int) -> bool | None:
        try:
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _wait_for_lock(number: int) -> None:
        while True:
            with contextlib.suppress(OSError):  # LK_LOCK fails after ten seconds
                msvcrt.locking(number, msvcrt.LK_LOCK, 1)
                return

    def _unlock(number: int) -> None:
        with contextlib.suppress(OSError):
            os.lseek(number, 0, os.SEEK_SET)
            msvcrt.locking(number, msvcrt.LK_UNLCK, 1)

else:

    def _read_piece(number: int, into: memoryview) -> int:
        return os.readv(number, [into])

    def _try_lock(number: int) -> bool | None:
        """Whether the lock was acquired; None if the file system has no locks."""
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def _wait_for_lock(number: int) -> None:
        fcntl.flock(number, fcntl.LOCK_EX)

    def _unlock(number: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_UN)


DISK = RealDisk()
