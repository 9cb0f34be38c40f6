"""What is in a folder of checkpoints: manifest.json, or the files themselves where it is lost.

Each file says on its own which step it is of; the manifest adds which files there should be, so
that one that is gone or exchanged is noticed. Its own SHA-256 shows when it is damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onward.checkpoints.disk import Disk
from onward.checkpoints.tensor_files import look, written_aside
from onward.errors import CheckpointError

log = logging.getLogger("onward")

NAME = "manifest.json"
VERSION = 1
_LONGEST = 64 << 20  # bytes; a line for each of hundreds of thousands of checkpoints
_FILE = re.compile(r"step-(\d{12,})\.safetensors")


@dataclass(frozen=True)
class Entry:
    """One checkpoint of a folder; `serial` counts the saves, whatever their steps."""

    step: int
    serial: int
    sha256: str  # of its header, which holds those of its tensors
    metric: float | None = None

    @property
    def file(self) -> str:
        return file_of(self.step)


def file_of(step: int) -> str:
    """The name of a step's file."""
    return f"step-{step:012d}.safetensors"


def finite(metric: float | None) -> float | None:
    """The metric, if checkpoints can be compared by it."""
    return metric if metric is not None and math.isfinite(metric) else None


def dump(entries: Iterable[Entry]) -> bytes:
    """The manifest's bytes."""
    rows = [{**asdict(entry), "file": entry.file} for entry in entries]
    return _sealed({"version": VERSION, "checkpoints": rows})


def _sealed(body: dict[str, Any]) -> bytes:
    return _text({**body, "sha256": hashlib.sha256(_text(body)).hexdigest()})


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode("ascii")


def parse(data: bytes) -> list[Entry]:
    """The entries of a manifest; ValueError where it is not as it was written."""
    try:
        body = json.loads(data)
        del body["sha256"]
        whole = _sealed(body) == data
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a manifest") from error
    if not whole:
        raise ValueError("its SHA-256 is another one")
    if body["version"] != VERSION:
        raise CheckpointError(
            f"{NAME} is of version {body['version']}, and this Onward reads {VERSION}\n"
            "use the Onward that wrote it, or a newer one"
        )
    names = ("step", "serial", "sha256", "metric")
    return [Entry(**{name: row[name] for name in names}) for row in body["checkpoints"]]


def write_manifest(folder: Path, entries: Iterable[Entry], disk: Disk) -> None:
    """Write the manifest in place of the old one, durably."""
    data = dump(entries)
    with written_aside(folder / NAME, len(data), disk) as file:
        disk.write(file, 0, memoryview(data))


@dataclass(frozen=True)
class Catalog:
    """The checkpoints of a folder, the oldest save first, and what is wrong with others."""

    entries: list[Entry]
    missing: list[Entry]  # that the manifest has, and the folder has not
    unread: dict[str, str]  # files named like checkpoints that are none, and why

    @property
    def next_serial(self) -> int:
        return 1 + max((entry.serial for entry in [*self.entries, *self.missing]), default=0)


def read_catalog(folder: Path, disk: Disk) -> Catalog:
    """What the manifest lists and what lies in the folder, put together."""
    listed, fault = _listed(folder, disk)
    names = disk.names(folder)
    files = {int(match[1]): name for name in names if (match := _FILE.fullmatch(name))}
    if listed is None and (files or NAME in names):
        log.warning("%s; the files themselves are read instead", fault)
    listed = listed or []
    entries = [entry for entry in listed if entry.step in files]
    missing = [entry for entry in listed if entry.step not in files]
    unread = {}
    for step in files.keys() - {entry.step for entry in listed}:
        try:  # saved, but the writer died before it could list it
            seen = look(folder / files[step], disk=disk)
            if seen.step != step:
                raise CheckpointError(f"{folder / files[step]}: holds step {seen.step}")
            entries.append(Entry(step, seen.serial, seen.sha256, finite(seen.metric)))
        except CheckpointError as error:
            unread[files[step]] = str(error).splitlines()[0]
    return Catalog(sorted(entries, key=lambda entry: entry.serial), missing, unread)


def _listed(folder: Path, disk: Disk) -> tuple[list[Entry] | None, str]:
    """What the manifest lists, or None and why it does not."""
    try:
        return parse(_read(folder / NAME, disk)), ""
    except CheckpointError:
        raise
    except FileNotFoundError:
        return None, f"{folder / NAME} is missing"
    except OSError as error:
        return None, f"{folder / NAME} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return None, f"{folder / NAME} is damaged: {error}"


def _read(path: Path, disk: Disk) -> bytes:
    file = disk.open(path)
    try:
        size = disk.size(file)
        if size > _LONGEST:
            raise ValueError(f"it has {size:,} bytes")
        data = bytearray(size)
        disk.read(file, 0, memoryview(data))
        return bytes(data)
    finally:
        disk.close(file)
