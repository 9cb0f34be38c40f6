"""List the checkpoints of a folder, by manifest.json or, if that is lost, by the files themselves.

Each file holds its step; the manifest adds which files there should be, so that a missing or
replaced one is detected. It holds its own SHA-256.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from onward.checkpoints.digested_json import (
    decode_digested,
    encode_digested,
    read_digested_bytes,
)
from onward.checkpoints.disk import Disk
from onward.checkpoints.tensor_files import atomic_write, read_header
from onward.errors import CheckpointError
from onward.message_text import first_line

log = logging.getLogger("onward")

NAME = "manifest.json"
VERSION = 1
_FILE = re.compile(r"step-(\d{12,})\.safetensors")


@dataclass(frozen=True)
class ManifestEntry:
    """One checkpoint of a folder; `serial` is the number of the save, independent of the step."""

    step: int
    serial: int
    sha256: str  # of its header, which holds those of its tensors
    metric: float | None = None

    @property
    def file(self) -> str:
        return file_name(self.step)


def file_name(step: int) -> str:
    """The file name of a step's checkpoint."""
    return f"step-{step:012d}.safetensors"


def finite_or_none(metric: float | None) -> float | None:
    """The metric; None if it is NaN or infinite, and cannot be compared."""
    return metric if metric is not None and math.isfinite(metric) else None


def encode_manifest(entries: Iterable[ManifestEntry]) -> bytes:
    """The manifest's bytes."""
    rows = [{**asdict(entry), "file": entry.file} for entry in entries]
    return encode_digested({"version": VERSION, "checkpoints": rows})


def decode_manifest(data: bytes) -> list[ManifestEntry]:
    """The entries of a manifest; ValueError if it is damaged."""
    body = decode_digested(data)
    if body["version"] != VERSION:
        raise CheckpointError(
            f"{NAME} is of version {body['version']}, and this Onward reads {VERSION}\n"
            "use the Onward that wrote it, or a newer one"
        )
    names = ("step", "serial", "sha256", "metric")
    return [ManifestEntry(**{name: row[name] for name in names}) for row in body["checkpoints"]]


def write_manifest(folder: Path, entries: Iterable[ManifestEntry], disk: Disk) -> None:
    """Replace the manifest durably."""
    data = encode_manifest(entries)
    with atomic_write(folder / NAME, len(data), disk) as file:
        disk.write(file, 0, memoryview(data))


@dataclass(frozen=True)
class Catalog:
    """The checkpoints of a folder, the oldest save first, and problems with other files."""

    entries: list[ManifestEntry]
    missing: list[ManifestEntry]  # in the manifest, but not in the folder
    unread: dict[str, str]  # files with a checkpoint's name that cannot be read -> the reason

    @property
    def next_serial(self) -> int:
        return 1 + max((entry.serial for entry in [*self.entries, *self.missing]), default=0)


def read_catalog(folder: Path, disk: Disk) -> Catalog:
    """Read the manifest and compare it with the files in the folder."""
    listed, reason = _read_manifest(folder, disk)
    names = disk.names(folder)
    files = {int(match[1]): name for name in names if (match := _FILE.fullmatch(name))}
    if listed is None and (files or NAME in names):
        log.warning("%s; the files themselves are read instead", reason)
    listed = listed or []
    entries = [entry for entry in listed if entry.step in files]
    missing = [entry for entry in listed if entry.step not in files]
    unread = {}
    for step in files.keys() - {entry.step for entry in listed}:
        try:  # the writer was killed after the save, before it wrote the manifest
            seen = read_header(folder / files[step], disk=disk)
            if seen.step != step:
                raise CheckpointError(
                    f"{folder / files[step]}: its name says step {step}, but it holds {seen.step}"
                )
            entries.append(
                ManifestEntry(step, seen.serial, seen.sha256, finite_or_none(seen.metric))
            )
        except CheckpointError as error:
            unread[files[step]] = first_line(error)
    return Catalog(sorted(entries, key=lambda entry: entry.serial), missing, unread)


def _read_manifest(folder: Path, disk: Disk) -> tuple[list[ManifestEntry] | None, str]:
    """The entries of the manifest, or None and the reason."""
    try:
        return decode_manifest(read_digested_bytes(folder / NAME, disk)), ""
    except CheckpointError:
        raise
    except FileNotFoundError:
        return None, f"{folder / NAME} is missing"
    except OSError as error:
        return None, f"{folder / NAME} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return None, f"{folder / NAME} is damaged: {error}"
