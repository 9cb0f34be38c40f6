"""Retention: which checkpoints of a folder are kept, the newest and the best."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from onward.errors import OptionError


class RatedSave(Protocol):
    """A checkpoint's metric, and the number of its save."""

    @property
    def metric(self) -> float | None: ...
    @property
    def serial(self) -> int: ...


Save = TypeVar("Save", bound=RatedSave)


@dataclass(frozen=True)
class Retention:
    """Keep the `keep` newest checkpoints (None: all) and the `keep_best` with the better metric.

    `every`: how many steps lie between two saves; None: not known.
    """

    keep: int | None = 3
    keep_best: int = 1
    better: Literal["lower", "higher"] = "lower"
    every: int | None = None

    def __post_init__(self) -> None:
        keep, keep_best, every = self.keep, self.keep_best, self.every
        if keep is not None and not (isinstance(keep, int) and keep >= 1):
            raise OptionError(
                f"checkpoints: keep must be None or a number, 1 or more, not {keep!r}"
            )
        if not (isinstance(keep_best, int) and keep_best >= 0):
            raise OptionError(
                f"checkpoints: keep_best must be a number, 0 or more, not {keep_best!r}"
            )
        if self.better not in ("lower", "higher"):
            raise OptionError(
                f"checkpoints: better must be 'lower' or 'higher', not {self.better!r}"
            )
        if every is not None and not (isinstance(every, int) and every >= 1):
            raise OptionError(
                f"checkpoints: every must be None or a number, 1 or more, not {every!r}"
            )

    def due(self, step: int) -> bool:
        """Whether to save after this step, by `every`; never if it is None."""
        return self.every is not None and step > 0 and step % self.every == 0

    def kept(self, saves: Sequence[Save]) -> list[Save]:
        """The newest and the best of some saves, which are given and returned oldest first."""
        newest = saves if self.keep is None else saves[-self.keep :]
        best = self.by_metric(saves)[: self.keep_best]
        return [save for save in saves if save in newest or save in best]

    def by_metric(self, saves: Iterable[Save]) -> list[Save]:
        """Saves with a metric, the best first; of equal ones, the newer."""
        sign = 1 if self.better == "lower" else -1
        rated = [(sign * save.metric, -save.serial, save) for save in saves
                 if save.metric is not None]  # fmt: skip
        return [save for _, _, save in sorted(rated, key=operator.itemgetter(0, 1))]
