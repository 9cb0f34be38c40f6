"""StoredBatches: the batches of data by number, read once and kept in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from onward.compress.calibration import Array, Calibration, Labelled
from onward.compress.distillation.scratch_folder import make_scratch_folder

_MEMORY = 256 << 20  # bytes of batches that stay in memory; the others go to disk


class StoredBatches:
    """Batches in an order that depends only on the seed and the step.

    The first epoch reads the data in its order; the later ones shuffle the batches.
    """

    def __init__(self, calibration: Calibration, seed: int, memory: int = _MEMORY) -> None:
        self._reader: Iterator[Labelled] = calibration.labelled_batches()
        self._seed, self._space = seed, memory
        self._kept: list[Labelled | Path] = []
        self._count: int | None = None
        self._folder: Path | None = None
        self._order: tuple[int, list[int]] = (0, [])

    def at(self, step: int) -> tuple[int, Labelled]:
        """The number of the batch of a step, and the batch."""
        number = self._number(step)
        found = self._kept[number]
        return number, _read(found) if isinstance(found, Path) else found

    def epoch(self, step: int) -> int:
        """The epoch of a step."""
        self._number(step)
        return step // self._count if self._count else 0

    @property
    def count(self) -> int:
        """The number of batches; all are read."""
        while self._count is None:
            self._read_next()
        return self._count

    def _number(self, step: int) -> int:
        while self._count is None and len(self._kept) <= step:
            self._read_next()
        if self._count is None or step < self._count:
            return step
        epoch, place = divmod(step, self._count)
        if self._order[0] != epoch:
            shuffled = np.random.default_rng([self._seed, epoch]).permutation(self._count)
            self._order = (epoch, shuffled.tolist())
        return self._order[1][place]

    def _read_next(self) -> None:
        batch = next(self._reader, None)
        if batch is None:
            self._count = len(self._kept)
            return
        arrays = [np.asarray(feed) for feed in batch[0].values()]
        size = sum(array.nbytes for array in arrays)
        if size <= self._space:
            self._space -= size
            self._kept.append(batch)
            return
        if self._folder is None:
            self._folder = make_scratch_folder(self, "onward-batches-")
        path = self._folder / f"{len(self._kept)}.npz"
        named: dict[str, Array] = {f"x{place}": array for place, array in enumerate(arrays)}
        if batch[1] is not None:
            named["targets"] = np.asarray(batch[1])
        np.savez(path, allow_pickle=False, names=np.array(list(batch[0])), **named)
        self._kept.append(path)


def _read(path: Path) -> Labelled:
    with np.load(path, allow_pickle=False) as loaded:
        names = loaded["names"].tolist()
        feeds = {name: loaded[f"x{place}"] for place, name in enumerate(names)}
        return feeds, loaded["targets"] if "targets" in loaded.files else None
