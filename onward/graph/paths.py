"""Check the paths that users give, explain why a file cannot be read or written, read models."""

from __future__ import annotations

import difflib
import errno
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onward.errors import (
    FileExists,
    FileMissing,
    InvalidModel,
    LimitExceeded,
    OnwardError,
    OptionError,
    WriteFailed,
)
from onward.graph.limits import ModelLimits
from onward.message_text import list_names

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def to_path(given: object) -> Path:
    """Convert a user's text or path to a Path; refuse anything else, and null characters.

    >>> to_path("model.onnx").suffix
    '.onnx'
    """
    if not isinstance(given, (str, os.PathLike)) or "\0" in str(given):
        raise OptionError(
            f"a path must be a text without null characters, or a Path, not {given!r}\n"
            "give the name of a file or of a folder"
        )
    try:
        os.fsencode(given)
    except UnicodeEncodeError:
        raise OptionError(
            f"a path must be a text that can name a file, not {str(given)!r}\n"
            "give the name of a file or of a folder"
        ) from None
    return Path(given)


def absolute(source: Any) -> Any:
    """An absolute path from a path; any other source unchanged.

    >>> absolute(b"a model's bytes")
    b"a model's bytes"
    """
    return Path(source).absolute() if isinstance(source, (str, os.PathLike)) else source


def check_readable(path: Path, what: str = "model") -> None:
    """Refuse a path that is not a file."""
    check_exists(path, what)
    if not path.is_file():
        raise InvalidModel(f"{path} is not a file\ngive the path of the .onnx file inside it")


def check_exists(path: Path, what: str) -> None:
    """Refuse a path that does not exist."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise FileMissing(f"no {what} at {path}\n{suggest_path(path)}") from error
    except OSError as error:
        raise FileMissing(f"{path} cannot be read: {explain_read_failure(path, error)}") from error


def explain_read_failure(path: Path, error: OSError) -> str:
    """Why a file cannot be read, and what to do."""
    why = error.strerror or str(error)
    if error.errno in _FORBIDDEN:
        return f"{why}\nlet this process read {path}"
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return f"{why}\ncheck the path"
    return f"{why}\ncheck the disk of {path.parent}"


def is_special(path: Path) -> bool:
    """Whether a device, a pipe or a socket has this name: a new file would replace it."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def follow_link(path: Path) -> Path:
    """The file that a symbolic link names: what is written replaces that file, not the link."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def check_replaceable(path: Path) -> None:
    """Refuse to put a new file in the place of a device, a pipe or a socket."""
    if is_special(path):
        raise WriteFailed(
            f"{path} cannot be written: it is a device, a pipe or a socket\ngive the name of a file"
        )


def suggest_path(path: Path) -> str:
    """A hint for a path that does not exist: a similar name, or what its folder has."""
    folder = path.absolute().parent
    if path.is_symlink():
        return f"it is a link to {os.readlink(path)}, which is not there"
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return f"there is no folder {folder}: check the path"
    stems = difflib.get_close_matches(path.stem, {Path(name).stem for name in names})
    if stems:  # whatever the suffix: it would make any two names alike
        return f"did you mean {list_names(name for name in names if Path(name).stem in stems)}?"
    same_kind = [name for name in names if Path(name).suffix == path.suffix]
    if not same_kind:
        return f"nothing in {folder} has a name like it: check the path"
    return f"check the path: {folder} has {list_names(same_kind)}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system while writing into errors with the user's path and what to do."""
    try:
        yield
    except OnwardError:
        raise
    except OSError as error:
        why, advice = explain_failure(path, error)
        kind = FileExists if isinstance(error, FileExistsError) else WriteFailed
        failure = kind(f"{path} cannot be written: {why}\n{advice}")
        failure.errno = error.errno
        raise failure from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents if they do not exist."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work is done."""
    path = follow_link(path)
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        with tempfile.TemporaryFile(dir=path.absolute().parent, prefix=".onward-"):
            pass


def explain_failure(path: Path, error: OSError) -> tuple[str, str]:
    """Why a file or a folder cannot be written, and what to do."""
    folder = path.parent if path.parent.parts else Path.cwd()
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))
    if error.errno == errno.EISDIR:
        return "it is a folder", "give the name of a file"
    if error.errno == errno.EEXIST:
        return "there is a file of that name", "remove it, or give another name"
    if error.errno == errno.ENAMETOOLONG:
        return error.strerror or str(error), "give a shorter name"
    if not there.is_dir():
        return f"{there} is not a folder", "give a path inside a folder"
    if error.errno == errno.ENOENT and there != folder:
        return f"there is no folder {folder}", "make the folder first, or write to another one"
    why = error.strerror or str(error)
    if error.errno in _FORBIDDEN:
        return why, f"let this process write in {there}, or write to another folder"
    if error.errno in _FULL:
        return why, f"make room on the disk of {there}, or write to another folder"
    return why, f"check the disk of {there}, or write to another folder"


def check_archive(path: Path, limits: ModelLimits) -> None:
    """Refuse a file that is not a torch program, before torch reads it: no archive, or a bomb.

    A torch program is refused, too, unless pickles are allowed: unpickling may run any code.
    """
    check_readable(path)
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise InvalidModel(f"{path} is not a torch.export program: {error}") from error
    size = path.stat().st_size
    if unpacked > size:  # torch stores what it writes as it is
        raise InvalidModel(
            f"{path} is not a torch.export program: {size:,} bytes unpack to {unpacked:,}"
        )
    if not limits.allow_pickle:
        raise LimitExceeded(
            f"{path} is a torch program, which torch may unpickle: it could run any code\n"
            "if you trust this model, set ModelLimits.allow_pickle, or export it to ONNX"
        )


def read_model(path: Path, most: int, limit: str = "file_bytes") -> bytes:
    """Read a model's file, of at most `most` bytes; the opened file is the one that is checked."""
    check_readable(path)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:  # a FIFO would make us wait
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise InvalidModel(f"{path} is not a file\ngive the path of the .onnx file inside it")
        if status.st_size > most:
            raise LimitExceeded(
                f"{path}: {status.st_size:,} bytes, more than the limit of {most:,}\n"
                f"if you trust this model, raise ModelLimits.{limit}"
            )
        return file.read(status.st_size)
