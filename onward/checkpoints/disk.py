"""Every file operation that a checkpoint is made of, one call each.

Tests record them, replay any beginning of them as if the power had gone, and make each one fail.
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
_PIECE = 1 << 22  # bytes of one call to the system, as large as a cache


@dataclass(frozen=True)
class Handle:
    """An open file, and where it is."""

    number: int
    path: Path


class Disk(Protocol):
    """What files and folders do; `RealDisk` does it."""

    def make_folder(self, folder: Path) -> None: ...
    def names(self, folder: Path) -> list[str]: ...
    def free(self, folder: Path) -> int: ...
    def create(self, path: Path) -> Handle: ...
    def open(self, path: Path) -> Handle: ...
    def size(self, file: Handle) -> int: ...
    def read(self, file: Handle, offset: int, into: memoryview) -> int: ...
    def write(self, file: Handle, offset: int, data: memoryview) -> None: ...
    def sync(self, file: Handle) -> None: ...
    def close(self, file: Handle) -> None: ...
    def commit(self, file: Handle, path: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...
    def is_abandoned(self, path: Path) -> bool: ...
    def locked(self, path: Path) -> contextlib.AbstractContextManager[None]: ...


class RealDisk:
    """The disk of this machine."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those that it is in, durably; nothing where it is there already."""
        if folder.is_dir():
            return
        if folder.parent != folder:
            self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # one may pass through a folder, not list it
            self.sync_folder(folder.parent)

    def names(self, folder: Path) -> list[str]:
        """What is in a folder."""
        return sorted(os.listdir(folder))

    def free(self, folder: Path) -> int:
        """Bytes that this process may still write there."""
        return shutil.disk_usage(folder).free

    def create(self, path: Path) -> Handle:
        """A new file, locked as long as it is open: so others see that its writer lives."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY
        file = Handle(os.open(path, flags, 0o666), path)
        if _try_lock(file.number) is False or not os.fstat(file.number).st_nlink:
            self.close(file)  # somebody tidied it away between the two calls
            raise FileExistsError(errno.EEXIST, "taken by another process", str(path))
        return file

    def open(self, path: Path) -> Handle:
        """A file to read; what is not an ordinary file is refused, and never waited for."""
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY
        file = Handle(os.open(path, flags), path)
        if not stat.S_ISREG(os.fstat(file.number).st_mode):
            self.close(file)
            raise OSError(errno.EINVAL, "not an ordinary file", str(path))
        return file

    def size(self, file: Handle) -> int:
        """How many bytes a file has."""
        return os.fstat(file.number).st_size

    def read(self, file: Handle, offset: int, into: memoryview) -> int:
        """Fill a buffer from a place on; fewer bytes than it has where the file ends."""
        os.lseek(file.number, offset, os.SEEK_SET)
        done = 0
        while done < len(into):
            count = _read_piece(file.number, into[done : done + _PIECE])
            if not count:
                break
            done += count
        return done

    def write(self, file: Handle, offset: int, data: memoryview) -> None:
        """Write all of it at a place."""
        os.lseek(file.number, offset, os.SEEK_SET)
        while data:
            data = data[os.write(file.number, data[:_PIECE]) :]

    def sync(self, file: Handle) -> None:
        """Return when the file's bytes would survive a loss of power."""
        if sys.platform == "darwin":
            fcntl.fcntl(file.number, fcntl.F_FULLFSYNC)  # fsync stops at the drive's own cache
        else:
            os.fsync(file.number)

    def close(self, file: Handle) -> None:
        """Close it; whoever still has it open after a fork holds no lock."""
        _unlock(file.number)
        os.close(file.number)

    def commit(self, file: Handle, path: Path) -> None:
        """Give a file its name, in one step, in place of the file that had it; and close it."""
        if sys.platform == "win32":
            self.close(file)  # it does not rename what is open
            os.replace(file.path, path)
            return
        try:
            os.replace(file.path, path)  # still locked, so that nobody takes it for a leftover
        finally:
            self.close(file)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder would survive a loss of power."""
        if sys.platform == "win32":
            return  # it has no such call, and writes names in order
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno != errno.EINVAL:  # there are disks that cannot, and need not
                raise
        finally:
            os.close(number)

    def is_abandoned(self, path: Path) -> bool:
        """Whether the process that created this file is gone."""
        if sys.platform == "win32":
            return True  # one that is open cannot be removed there
        number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return _try_lock(number) is True
        finally:
            _unlock(number)
            os.close(number)

    @contextlib.contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Hold a lock that one process, and one thread of it, has at a time; wait for it."""
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
            with contextlib.suppress(OSError):  # it gives up after ten seconds
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
        """Whether the lock is ours now; None where this disk has no locks."""
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
