"""Lease: which group of processes owns a run, by a token that only grows.

A group that starts takes the next token, durably, as the name of a file in the run's folder; it may
commit checkpoints as long as no group has taken a later one. Taking and committing happen under the
folder's lock, so that a group which was stopped, cut off or taken for dead cannot commit any more.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from onward.checkpoints.digested_json import read_digested_bytes
from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.folder import folder_error, locked_folder
from onward.checkpoints.sharded.save_folders import list_saves
from onward.checkpoints.tensor_files import StrPath, atomic_write
from onward.errors import RunFenced
from onward.graph.paths import to_path

_LEASE = re.compile(r"owner-(\d{6,18})-[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Lease:
    """The right of a group to commit into a folder; `owner` says in words who it is."""

    folder: Path
    token: int
    owner: str
    name: str  # of its file

    @property
    def path(self) -> Path:
        return self.folder / self.name


def take_lease(folder: StrPath, owner: str, *, disk: Disk = DISK) -> Lease:
    """Take the next token of a run's folder; groups with earlier ones can no longer commit."""
    folder = to_path(folder)
    with locked_folder(folder, "owner.json", 0, disk):
        try:
            held = _leases(folder, disk)
            tokens = [*held, *(save.token for save in list_saves(folder, disk))]
        except OSError as error:
            raise folder_error(folder, error) from error
        token = 1 + max(tokens, default=0)
        lease = Lease(folder, token, owner, f"owner-{token:06d}-{secrets.token_hex(8)}.json")
        data = json.dumps({"token": token, "owner": owner}).encode()
        with atomic_write(lease.path, len(data), disk) as file:
            disk.write(file, 0, memoryview(data))
        for name in held.values():
            with contextlib.suppress(OSError):  # it is out of date all the same
                disk.remove(folder / name)
    return lease


def _leases(folder: Path, disk: Disk) -> dict[int, str]:
    """The files of tokens, by token."""
    return {int(m[1]): name for name in disk.names(folder) if (m := _LEASE.fullmatch(name))}


def check_lease(lease: Lease, what: str, disk: Disk) -> None:
    """Raise RunFenced if another group took the run over; call it under the folder's lock."""
    try:
        held = _leases(lease.folder, disk)
    except OSError as error:
        raise folder_error(lease.folder, error) from error
    newest = max(held, default=0)
    if newest == lease.token and held[newest] == lease.name:
        return
    if newest > lease.token:
        by = f"{_owner(lease.folder / held[newest], disk)} owns the run now, with token {newest}"
    else:
        by = f"{lease.path} is gone, by which it owned the run"
    raise RunFenced(
        f"{what} is not saved: {by}; {lease.owner} has token {lease.token}\n"
        "end these processes; what is committed in the folder is untouched"
    )


def _owner(path: Path, disk: Disk) -> str:
    """Who took a token, in words, as far as its file says."""
    try:
        return str(json.loads(read_digested_bytes(path, disk))["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another group"
