"""TrainingPlan: everything that the loop needs, worked out before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.losses.loss import Loss
from onward.optimizers.optimizer import Optimizer
from onward.programs.training_options import TrainingOptions
from onward.runner.data.batches import Batches
from onward.runner.finetune.adapted_model import AdaptedModel
from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.metric import Metric
from onward.runner.plan.preprocessing import Preprocessing


@dataclass(frozen=True)
class ChosenSetting:
    """A setting that was worked out, and from what; printed before the first step.

    >>> print(ChosenSetting("loss", "cross_entropy", "target 'kind' has 3 classes"))
    loss: cross_entropy (target 'kind' has 3 classes)
    """

    what: str
    value: str
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value} ({self.why})"


@dataclass(frozen=True)
class TrainingPlan:
    """What a run trains, on what, how, and what it measures."""

    adapted: AdaptedModel  # the model that is trained: with its new head, adapters, ...
    loss: Loss
    optimizer: Optimizer
    options: TrainingOptions
    preprocessing: Preprocessing  # columns to feeds; stored with the exported model
    training: Batches  # feeds of the session: the model's inputs and the loss's target
    validation: Batches | None
    make_metrics: Callable[[], list[Metric]]  # new ones for each evaluation
    output: str  # the model's output that metrics compare ...
    target: str  # ... with this feed
    scores: ScoreSettings | None  # how classes are read from both; None: they are no classes
    classes: tuple[Any, ...]  # of a classifier, by number; else empty
    epochs: int
    steps: int  # updates, if nothing stops the run
    monitor: str  # the number that chooses the best weights: "val_accuracy"
    higher_is_better: bool
    choices: Sequence[ChosenSetting]
    sizes: Mapping[str, int]  # {"training rows": 800, "validation rows": 200}
    weights: str | None = None  # the feed with the weights of rows
    digests: Mapping[str, str] = field(default_factory=dict)  # of the columns of the data
