"""Where a model should be: the check before anything is read, and the reading."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path
from typing import Any

from onward.errors import InvalidModel, LimitExceeded, OptionError
from onward.graph.limits import ModelLimits


def to_path(given: object) -> Path:
    """A path from what a user gave, or what a path is; no system has names with a null character.

    >>> to_path("model.onnx").suffix
    '.onnx'
    """
    if not isinstance(given, (str, os.PathLike)) or "\0" in str(given):
        raise OptionError(
            f"a path is a text without null characters, or a Path, not {given!r}\n"
            "give the name of a file or of a folder"
        )
    return Path(given)


def absolute(source: Any) -> Any:
    """A path that stays true when the working directory changes; all else as it is.

    >>> absolute(b"a model's bytes")
    b"a model's bytes"
    """
    return Path(source).absolute() if isinstance(source, (str, os.PathLike)) else source


def check_readable(path: Path) -> None:
    """Refuse what is not a file, in one line that says so."""
    if not path.exists():
        raise FileNotFoundError(f"no model at {path}")
    if not path.is_file():
        raise InvalidModel(f"{path} is not a file\ngive the path of the .onnx file inside it")


def check_archive(path: Path, limits: ModelLimits) -> None:
    """Refuse what cannot be a torch program, before torch is asked: no archive, or a bomb.

    What can be one is refused, too, unless pickles are allowed: unpickling runs whatever it holds.
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
    """A model's own bytes, at most so many: what is opened is what is checked."""
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
