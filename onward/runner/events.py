"""Events of a run: an update, an evaluation, a mistake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onward.programs.program import LOSS
from onward.runner.data.batches import DataBatch

Outputs = Mapping[str, Any]


class StepRecord(NamedTuple):
    """One update that was made.

    Numbers are read when they are asked for: on a GPU, reading the loss waits for the step.
    """

    number: int  # of updates that were made, this one included
    epoch: int  # from 0
    batch: DataBatch  # the last one, if several are accumulated
    results: Outputs  # the loss and the outputs, as the session returned them
    learning_rate: float
    earlier: Sequence[Outputs] = ()  # results of the other batches, if several are accumulated

    @property
    def loss(self) -> float:
        """The mean over the batches of the update, as their gradients are."""
        if not self.earlier:
            return float(self.results[LOSS])
        losses = [float(each[LOSS]) for each in (*self.earlier, self.results)]
        return sum(losses) / len(losses)


@dataclass(frozen=True)
class Evaluation:
    """The numbers on held-out data."""

    step: int
    epoch: int
    numbers: Mapping[str, float]  # val_loss, val_accuracy, ...
    is_best: bool = False
    confusion: Any = None  # counts by class and answer, an array, for classifiers
    mistakes: list[Mistake] = field(default_factory=list)  # a few of them
    seconds: float = 0.0


@dataclass(frozen=True)
class Mistake:
    """A held-out row whose answer was wrong."""

    position: int
    feeds: Mapping[str, Any]  # only of this row, as the model reads it
    label: Any  # a class
    answer: Any
