"""PruningTask: the model, the data and the goal of one call of `prune`, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.progress_steps import Progress
from onward.compress.pruning.prune_settings import Goal
from onward.compress.quality import Judge
from onward.compress.report import Change
from onward.providers.choose import Asked


@dataclass(frozen=True, kw_only=True)
class PruningTask:
    """What every step of a pruning reads.

    Attributes:
        timed: the feeds of the runs that are timed
    """

    original: ir.Model
    calibration: Calibration
    timed: Mapping[str, Any]
    judge: Judge
    providers: Asked
    goal: Goal
    progress: Progress
    seed: int
    multiple: int

    def dynamic_sizes(self) -> dict[str, int]:
        """The sizes of dynamic dimensions in the feeds that are timed."""
        found: dict[str, int] = {}
        for value in self.calibration.inputs:
            for place, size in enumerate(np.shape(self.timed.get(value.name, ()))):
                dim = value.shape[place] if place < len(value.shape) else None
                if not isinstance(dim, int):
                    found[f"{value.name}:{place}"] = size
                if isinstance(dim, str):
                    found[dim] = size
        return found


@dataclass(frozen=True)
class Pruned:
    """A pruned model, what was removed, notes for the report, and whether the goal was reached."""

    model: ir.Model
    changes: list[Change]
    notes: list[str]
    reached: bool = True
