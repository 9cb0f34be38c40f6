"""Checkpoints: a folder that keeps the newest and the best checkpoints of a training run.

    checkpoints = Checkpoints("runs/7", keep=3, keep_best=1)
    checkpoints.save(tensors, properties, step=100, metric=0.31)
    checkpoints.latest().tensors

A save is durable before anything older is removed. Damaged checkpoints are skipped. Several
processes may use one folder.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onward.checkpoints.disk import DISK, Disk
from onward.checkpoints.manifest import (
    NAME,
    Catalog,
    ManifestEntry,
    file_name,
    finite_or_none,
    read_catalog,
    write_manifest,
)
from onward.checkpoints.retention import Retention
from onward.checkpoints.tensor_files import Array, Checkpoint, StrPath, read, save_error, write
from onward.errors import CheckpointCorrupt, CheckpointError, CheckpointMissing
from onward.graph.paths import to_path
from onward.message_text import first_line

log = logging.getLogger("onward")

LOCK = ".lock"


class Checkpoints:
    """The checkpoints of one training run, in a folder that is made when the first is saved."""

    def __init__(
        self,
        folder: StrPath,
        *,
        keep: int | None = 3,
        keep_best: int = 1,
        better: Literal["lower", "higher"] = "lower",
        every: int | None = None,
        disk: Disk = DISK,
    ) -> None:
        """Keep the `keep` newest (None: all) and the `keep_best` with the better metric."""
        self._retention = Retention(keep, keep_best, better, every)
        self.folder = to_path(folder)
        self.keep, self.keep_best, self.better, self.every = keep, keep_best, better, every
        self.failures: list[CheckpointError] = []  # of try_save
        self._disk = disk
        self._damaged: set[str] = set()  # SHA-256 of checkpoints that were found damaged

    def due(self, step: int) -> bool:
        """Whether to save after this step, by `every`; never if it is None.

        >>> [step for step in range(1, 10) if Checkpoints("runs", every=3).due(step)]
        [3, 6, 9]
        """
        return self._retention.due(step)

    # -- saving ----------------------------------------------------------------------------------

    def save(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        step: int,
        metric: float | None = None,
    ) -> Path:
        """Save a checkpoint durably, then remove those no longer kept; returns its file.

        CheckpointError if it fails: earlier checkpoints are not lost then.
        """
        step, metric = check_step(step, metric)
        size = sum(getattr(tensor, "nbytes", 0) for tensor in tensors.values())
        with locked_folder(self.folder, file_name(step), size, self._disk):
            return self._save(tensors, properties, step, metric)

    def try_save(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        step: int,
        metric: float | None = None,
    ) -> Path | None:
        """Save; on failure, log the error, append it to `failures` and return None."""
        try:
            return self.save(tensors, properties, step, metric)
        except CheckpointError as error:
            self.failures.append(error)
            log.error("%s", error)
            return None

    def _save(
        self,
        tensors: Mapping[str, Array],
        properties: Mapping[str, Any],
        step: int,
        metric: float | None,
    ) -> Path:
        catalog, path = self._catalog(), self.folder / file_name(step)
        for entry in catalog.missing:
            log.warning("%s: there is no such file", self.folder / entry.file)
        for problem in catalog.unread.values():
            log.warning("%s", problem)
        others = [entry for entry in catalog.entries if entry.step != step]
        if len(others) < len(catalog.entries):  # its digest would not match the new file
            write_manifest(self.folder, others, self._disk)
        serial = catalog.next_serial
        digest = write(path, tensors, properties, step=step, metric=metric, serial=serial,
                       disk=self._disk)  # fmt: skip
        self._damaged.discard(digest)
        new = ManifestEntry(step, serial, digest, finite_or_none(metric))
        kept = self._kept([*others, new])
        write_manifest(self.folder, kept, self._disk)
        for entry in others:
            if entry not in kept:
                self._remove(entry)
        return path

    def _catalog(self) -> Catalog:
        try:
            return read_catalog(self.folder, self._disk)
        except OSError as error:
            raise folder_error(self.folder, error) from error

    def _kept(self, entries: list[ManifestEntry]) -> list[ManifestEntry]:
        """The newest and the best checkpoints, without those known to be damaged."""
        good = [entry for entry in entries if entry.sha256 not in self._damaged]
        return self._retention.kept(good)

    def _remove(self, entry: ManifestEntry) -> None:
        try:
            self._disk.remove(self.folder / entry.file)
        except FileNotFoundError:
            pass
        except OSError as error:  # the next save tries again
            why = error.strerror or error
            log.warning("%s is unused, but cannot be removed: %s", self.folder / entry.file, why)

    # -- loading ---------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The steps of the checkpoints, in order."""
        return sorted(entry.step for entry in self._catalog_or_empty().entries)

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of one step; CheckpointError if it is missing or damaged."""
        catalog = self._catalog_or_empty()
        for entry in [*catalog.entries, *catalog.missing]:
            if entry.step == step:
                return self._read(entry)
        if file_name(step) in catalog.unread:
            return read(self.folder / file_name(step), disk=self._disk)  # raises the reason
        there = ", ".join(map(str, sorted(entry.step for entry in catalog.entries)))
        raise CheckpointError(
            f"{self.folder} has no checkpoint of step {step}\nthere are: {there or 'none'}"
        )

    def latest(self) -> Checkpoint | None:
        """The last saved checkpoint that is not damaged; None if there are no checkpoints."""
        return self._first_good(lambda entries: entries[::-1])

    def best(self) -> Checkpoint | None:
        """The undamaged checkpoint with the best metric; None if none has a metric."""
        return self._first_good(self._retention.by_metric)

    def _catalog_or_empty(self) -> Catalog:
        try:
            self.folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return Catalog([], [], {})
        except OSError as error:
            raise folder_error(self.folder, error) from error
        return self._catalog()

    def _read(self, entry: ManifestEntry) -> Checkpoint:
        path = self.folder / entry.file
        try:
            found = read(path, disk=self._disk)
        except (CheckpointCorrupt, CheckpointMissing):
            self._damaged.add(entry.sha256)
            raise
        if found.sha256 != entry.sha256:
            raise CheckpointCorrupt(
                f"{path}: not damaged, but not the checkpoint that {NAME} lists\n"
                f"if it is meant to be there, remove {self.folder / NAME}"
            )
        return found

    def _first_good(
        self, order: Callable[[list[ManifestEntry]], list[ManifestEntry]]
    ) -> Checkpoint | None:
        """The first undamaged checkpoint; tried again if another process changed the folder."""
        catalog = self._catalog_or_empty()
        listed = sorted([*catalog.entries, *catalog.missing], key=lambda entry: entry.serial)
        problems = list(catalog.unread.values())
        found: Checkpoint | None = None
        for entry in order(listed):
            try:
                found = self._read(entry)
                break
            except CheckpointError as error:
                problems.append(first_line(error))
        if problems and self._catalog_or_empty() != catalog:
            return self._first_good(order)
        if problems and found is None:
            raise CheckpointCorrupt(
                f"{self.folder}: none of its checkpoints can be read: {'; '.join(problems)}\n"
                "restore the folder from a copy, or start again in another one"
            )
        for problem in problems:
            log.warning("%s; step %d is used instead", problem, found.step if found else -1)
        return found


@contextlib.contextmanager
def locked_folder(folder: Path, name: str, size: int, disk: Disk) -> Iterator[None]:
    """Make and lock a folder to save a checkpoint of this name and size in bytes.

    Only errors of locking are converted here.
    """
    with contextlib.ExitStack() as stack:
        try:
            disk.make_folder(folder)
            stack.enter_context(disk.locked(folder / LOCK))
        except OSError as error:
            raise save_error(folder / name, error, "locking the folder", size, disk) from error
        yield


def folder_error(folder: Path, error: OSError) -> CheckpointError:
    """The error of a folder whose names cannot be read."""
    return CheckpointError(
        f"the folder {folder} cannot be read: {error.strerror or error}\n"
        "check its disk, or use another folder"
    )


def check_step(step: Any, metric: Any) -> tuple[int, float | None]:
    """Step and metric as Python numbers; numpy's are accepted too."""
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
        raise CheckpointError(
            f"a checkpoint's step must be a whole number, 0 or more, not {step!r}"
        )
    if metric is not None and not isinstance(metric, (int, float, np.integer, np.floating)):
        raise CheckpointError(
            f"a checkpoint's metric must be a number or None, not a {type(metric).__name__}\n"
            "convert it with float()"
        )
    return int(step), None if metric is None else float(metric)
