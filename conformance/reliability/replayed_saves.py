"""R5: the power fails at every point of saving: the newest committed checkpoint loads.

    python -m conformance.reliability.replayed_saves [--saves N] [--variants N] [--seed S]

The file operations of some saves are recorded; then every prefix of them is replayed as a disk that
loses unsynced data (bytes of files, and names in the folder): all, none or any part of it. In each
state the newest checkpoint must load as it was saved, and the next save must work.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from conformance.reliability.saves import (
    KEEP,
    WatchedDisk,
    fault_of,
    leftovers,
    metric_of,
    properties_of,
    tensors_of,
)
from onward.checkpoints.folder import Checkpoints
from onward.checkpoints.manifest import NAME
from onward.errors import OnwardError

STEPS = (1, 2, 3, 4, 3, 4, 5, 6, 6, 7)  # going back, and saving one again, are among them
SECTOR = 64  # bytes that a disk writes whole; small, for small files


@dataclass
class Inode:
    """A file without a name: its writes, and how many of them are synced."""

    writes: list[tuple[int, bytes]] = field(default_factory=list)
    synced: int = 0

    def content(self, keep: str, draw: random.Random) -> bytes:
        """Its bytes after the power failed; `keep`: which unsynced writes are left."""
        data = bytearray()
        for number, (offset, written) in enumerate(self.writes):
            if number < self.synced or keep == "all":
                _put(data, offset, written)
            elif keep == "zeros":
                _put(data, offset, bytes(len(written)))
            elif keep == "part":
                for start in range(0, len(written), SECTOR):
                    if draw.random() < 0.5:
                        _put(data, offset + start, written[start : start + SECTOR])
        return bytes(data)


def _put(data: bytearray, offset: int, written: bytes) -> None:
    data.extend(bytes(max(0, offset + len(written) - len(data))))
    data[offset : offset + len(written)] = written


@dataclass
class Recording:
    """The operations of some saves, in order; ("saved", n) marks that save n was committed.

    Names are relative to the root; a folder's name ends with a slash.
    """

    root: Path
    commits: Callable[[str], bool]  # whether renaming a file to this name commits a save
    operations: list[tuple[str, Any, Any]] = field(default_factory=list)

    def record(self, name: str, arguments: tuple[Any, ...], do: Any) -> Any:
        new = name == "make_folder" and not arguments[0].is_dir()
        result = do(*arguments)
        match name, arguments:
            case "create", (path,):
                self.operations.append(("create", self._name(path), None))
            case "write", (file, offset, data):
                self.operations.append(("write", self._name(file.path), (offset, bytes(data))))
            case "sync", (file,):
                self.operations.append(("sync", self._name(file.path), None))
            case "commit", (file, path):
                self.operations.append(("commit", self._name(file.path), self._name(path)))
            case "remove", (path,):
                self.operations.append(("remove", self._name(path), None))
            case "make_folder", (folder,) if new:
                self.operations.append(("make_folder", self._name(folder) + "/", None))
            case "remove_folder", (folder,):
                self.operations.append(("remove", self._name(folder) + "/", None))
            case "sync_folder", (folder,):
                self.operations.append(("sync_folder", self._name(folder), None))
                self._note_committed()
        return result

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _note_committed(self) -> None:
        """A save is committed when its file has its name for good."""
        last = [operation for operation in self.operations[-3:] if operation[0] == "commit"]
        if last and self.commits(last[-1][2]):
            number = sum(operation[0] == "saved" for operation in self.operations)
            self.operations.append(("saved", number, None))


def record(saves: int) -> Recording:
    """Save so many times into one folder."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Recording(Path(folder), lambda name: name != NAME)
        disk: Any = WatchedDisk(recording.record)
        checkpoints = Checkpoints(folder, keep=KEEP, keep_best=1, disk=disk)
        for number, step in zip(range(saves), itertools.cycle(STEPS)):
            checkpoints.save(tensors_of(number), properties_of(number), step, metric_of(number))
    return recording


class Replay:
    """A disk that has done the first operations of a recording."""

    def __init__(self) -> None:
        self._inodes: dict[str, Inode] = {}
        self._names: dict[str, str] = {}  # as they are for good: name -> inode
        self._pending: list[tuple[str, str, Any]] = []  # changes of names that are not synced
        self.committed = -1

    def do(self, operation: tuple[str, Any, Any]) -> None:
        kind, name, detail = operation
        if kind == "create":
            self._inodes[name] = Inode()
            self._pending.append(("create", name, None))
        elif kind == "write":
            self._inodes[name].writes.append(detail)
        elif kind == "sync":
            self._inodes[name].synced = len(self._inodes[name].writes)
        elif kind in ("commit", "remove"):
            self._pending.append((kind, name, detail))
        elif kind == "make_folder":  # it syncs by itself
            self._inodes[name] = Inode()
            self._names[name] = name
        elif kind == "sync_folder":
            within = [change for change in self._pending if _folder_of(change[1]) == name]
            self._names = self._renamed(within)
            self._pending = [change for change in self._pending if change not in within]
        else:
            self.committed = name

    def _renamed(self, changes: list[tuple[str, str, Any]]) -> dict[str, str]:
        names = dict(self._names)
        for kind, name, detail in changes:
            if kind == "create":
                names[name] = name
            elif kind == "commit":
                names.pop(name, None)
                names[detail] = name
            else:
                names.pop(name, None)
        return names

    def states(self, variants: int, draw: random.Random) -> Iterator[dict[str, bytes]]:
        """Folders that may be found after the power was gone here."""
        for keep in ("none", "zeros", "all", *["part"] * variants):
            for count in sorted({0, len(self._pending), draw.randint(0, len(self._pending))}):
                yield self._folder(self._pending[:count], keep, draw)
        for _ in range(variants):  # disks that reorder
            yield self._folder([c for c in self._pending if draw.random() < 0.5], "part", draw)

    def _folder(
        self, changes: list[tuple[str, str, Any]], keep: str, draw: random.Random
    ) -> dict[str, bytes]:
        names = self._renamed(changes)
        return {name: self._inodes[inode].content(keep, draw) for name, inode in names.items()}


def _folder_of(name: str) -> str:
    return PurePosixPath(name).parent.as_posix()


@dataclass
class Tally:
    """The outcomes of the states."""

    operations: int = 0
    states: int = 0
    faults: list[str] = field(default_factory=list)

    def line(self) -> str:
        n = self.states
        failures = f"{len(self.faults)} in {n:,}" if self.faults else f"0 in {n:,}: < 3/{n:,}"
        return (
            f"R5: the power gone after each of {self.operations} operations, {n:,} states of the "
            f"disk; committed checkpoints that did not load: {failures}"
        )


def replay_all(saves: int, variants: int, seed: int, forgotten: str = "") -> Tally:
    """Replay every prefix of the operations; `forgotten` is a kind that the disk ignores."""
    return replay(record(saves), _fault, variants, seed, forgotten)


def replay(
    recording: Recording,
    judge: Callable[[Path, int], str],
    variants: int,
    seed: int,
    forgotten: str,
) -> Tally:
    """Replay a recording; `judge` tells what is wrong with a folder after a committed save."""
    tally, draw, replayed = Tally(), random.Random(seed), Replay()
    for operation in recording.operations:
        if operation[0] != forgotten:
            replayed.do(operation)
        tally.operations += operation[0] != "saved"
        seen = set()
        for state in replayed.states(variants, draw):
            if (key := frozenset(state.items())) in seen:
                continue
            seen.add(key)
            tally.states += 1
            with tempfile.TemporaryDirectory() as folder:
                restore_state(Path(folder), state)
                fault = judge(Path(folder), replayed.committed)
            if fault:
                tally.faults.append(f"after operation {tally.operations} ({operation[0]}): {fault}")
    return tally


def restore_state(folder: Path, state: dict[str, bytes]) -> None:
    """Make the files and folders of a state."""
    for name, data in state.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(data)


def _fault(folder: Path, committed: int) -> str:
    """What is wrong with a folder in which this save was committed last."""
    checkpoints: Any = Checkpoints(folder, keep=KEEP, keep_best=1, disk=WatchedDisk(without_syncs))
    try:
        found = checkpoints.latest()
        if found is None and committed < 0:
            return ""
        number = -1 if found is None else found.properties["number"]
        if number < committed:
            return f"save {number} was found where {committed} was committed"
        fault = fault_of(found)
        checkpoints.save(tensors_of(99), properties_of(99), 99, metric_of(99))
        fault = fault or fault_of(checkpoints.latest())
        return fault or " ".join(f"{each} was left" for each in leftovers(folder))
    except OnwardError as error:
        return f"save {committed} was committed: {str(error).splitlines()[0]}"


def without_syncs(name: str, arguments: tuple[Any, ...], do: Any) -> Any:
    """A hook of a disk that saves time: no power failure happens here."""
    return None if name in ("sync", "sync_folder") else do(*arguments)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the log's many lines about skipped checkpoints."""
    log = logging.getLogger("onward")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--saves", type=int, default=20)
    parser.add_argument("--variants", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with quiet():
        tally = replay_all(given.saves, given.variants, given.seed)
    print(tally.line())
    for fault in tally.faults[:20]:
        print(f"  {fault}")
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main())
