"""The folders of sharded checkpoints: one for each save, named after step, token and serial.

    runs/7/step-000000000100-token-2-save-5/part-00000.safetensors, ..., manifest.json

A folder without a manifest is not a checkpoint: its save was not committed, or is not yet.
"""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from onward.checkpoints.disk import Disk

log = logging.getLogger("onward")

MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d{12,18})-token-(\d{1,18})-save-(\d{1,18})")


@dataclass(frozen=True)
class SaveFolder:
    """The folder of one save: `token` is that of the processes that wrote it, `serial` its number.

    >>> SaveFolder(Path("runs/7"), 100, 2, 5).path.name
    'step-000000000100-token-2-save-5'
    """

    folder: Path
    step: int
    token: int
    serial: int

    @property
    def path(self) -> Path:
        return self.folder / f"step-{self.step:012d}-token-{self.token}-save-{self.serial}"

    @property
    def manifest(self) -> Path:
        return self.path / MANIFEST


def part_name(rank: int) -> str:
    """The name of a rank's file."""
    return f"part-{rank:05d}.safetensors"


def parse_save_folder(folder: Path, name: str) -> SaveFolder | None:
    """The save that a folder's name stands for; None if it is another name."""
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    found = SaveFolder(folder, *map(int, match.groups()))
    return found if found.path.name == name else None


def list_saves(folder: Path, disk: Disk) -> list[SaveFolder]:
    """The saves of a folder, the oldest first, whether they were committed or not."""
    names = disk.names(folder) if folder.is_dir() else []
    found = [save for name in names if (save := parse_save_folder(folder, name)) is not None]
    return sorted(found, key=lambda save: (save.token, save.serial))


def is_committed(save: SaveFolder, disk: Disk) -> bool:
    """Whether a save has a manifest."""
    return MANIFEST in disk.names(save.path)


def remove_save(save: SaveFolder, disk: Disk) -> None:
    """Remove a save: first the manifest, durably, so that it is never a checkpoint with gaps.

    What cannot be removed stays for the next time, with a line in the log.
    """
    try:
        names = disk.names(save.path)
        if MANIFEST in names:
            disk.remove(save.manifest)
            disk.sync_folder(save.path)
        for name in names:
            if name != MANIFEST:
                with contextlib.suppress(FileNotFoundError):
                    disk.remove(save.path / name)
        disk.remove_folder(save.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s is unused, but cannot be removed: %s", save.path, error.strerror or error)
