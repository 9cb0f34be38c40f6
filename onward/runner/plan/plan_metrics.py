"""The metrics of a run and the number that chooses the best weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from onward.errors import MetricError, OptionError, OptionTypeError
from onward.message_text import first_line, suggest_names
from onward.runner.config import TrainConfig
from onward.runner.data.batches import Batches
from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.make_metric import METRICS, OF_NUMBERS, default_metrics, make_metric
from onward.runner.metrics.metric import Metric
from onward.runner.plan.guess_loss import ChosenLoss
from onward.runner.plan.log_likelihood import LogLikelihood
from onward.runner.plan.model_shapes import TensorPort
from onward.runner.plan.modified_huber import ModifiedHuber
from onward.runner.plan.one_versus_rest import OneVersusRest
from onward.runner.plan.training_plan import ChosenSetting

_OF_CLASSES = ("cross_entropy", "bce_with_logits")


@dataclass
class HardTargetMetric:
    """A metric of classes where targets are weights of classes: the heaviest one counts."""

    metric: Metric
    axis: int = 1

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def higher_is_better(self) -> bool:
        return self.metric.higher_is_better

    def update(
        self, outputs: ArrayLike, targets: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Add a batch."""
        self.metric.update(outputs, np.argmax(np.asarray(targets), self.axis), weights)

    def result(self) -> float:
        """The metric of all rows since the last reset."""
        return self.metric.result()

    def reset(self) -> None:
        """Forget all rows."""
        self.metric.reset()

    def merge(self, other: HardTargetMetric) -> None:
        """Add the rows of another metric."""
        self.metric.merge(other.metric)


def choose_metrics(
    config: TrainConfig, chosen: ChosenLoss, port: TensorPort
) -> tuple[Callable[[], list[Metric]], list[ChosenSetting]]:
    """A function that makes the metrics of an evaluation; those of the config, or that fit."""
    choices = []
    names = config.metrics
    if names is None:
        names = [each.name for each in default_metrics(chosen.name, port.shape, chosen.axis)]
        if names:
            choices = [ChosenSetting("metrics", ", ".join(names), f"they fit {chosen.name}")]
    if config.metrics and chosen.name == "output":
        raise OptionError(
            "metrics compare an output with a target, but the model's own output is the loss\n"
            "leave metrics out"
        )
    settings = _score_settings(config, chosen, port)

    def make() -> list[Metric]:
        return [_make(name, settings, bool(config.mixup)) for name in names]

    make()  # a wrong name is reported before the run
    if config.metrics is not None and chosen.name in _OF_CLASSES:
        _check_fits(config.metrics, chosen.name)
    return make, choices


def _check_fits(names: list[str], loss: str) -> None:
    """Refuse metrics of numbers where targets are classes."""
    for name in names:
        if name in OF_NUMBERS:
            fitting = [each for each in METRICS if each not in OF_NUMBERS]
            hint = suggest_names(name, fitting, "those of classes are")
            raise OptionError(f"metrics: {name!r} compares numbers, but {loss} has classes\n{hint}")


def check_metrics(config: TrainConfig, chosen: ChosenLoss, held_out: Batches, target: str) -> None:
    """Refuse metrics of classes, given for a loss of numbers, that cannot read the targets."""
    if not config.metrics or chosen.name in (*_OF_CLASSES, "output"):
        return
    batch = next(held_out.epoch(0))
    for name in config.metrics:
        numbers = np.asarray(batch.feeds[target])
        try:
            _make(name, {}, False).update(numbers, numbers)
        except (MetricError, OptionError) as error:
            why = first_line(error)
            hint = suggest_names(name, OF_NUMBERS, "those of numbers are")
            raise OptionError(
                f"metrics: {name!r} does not fit targets of {chosen.name}: {why}\n{hint}"
            ) from error


def choose_monitor(
    config: TrainConfig, metrics: list[Metric], is_evaluated: bool
) -> tuple[str, bool, ChosenSetting]:
    """The number that chooses the best weights, and whether a higher one is better."""
    known = {f"val_{each.name}": each.higher_is_better for each in metrics} | {"val_loss": False}
    known = {**known, "loss": False} if is_evaluated else {"loss": False}
    if config.metrics and not is_evaluated:
        raise OptionError(
            "metrics are measured on held-out rows, and none are held out\n"
            "hold some out: --validation-split 0.1, give --validation, or leave metrics out"
        )
    if config.monitor is None:
        name = next(iter(known))
        why = "the first metric" if name not in ("loss", "val_loss") else "there is no metric"
        if not is_evaluated:
            why = "no rows are held out"
        return name, known[name], ChosenSetting("monitor", name, why)
    asked = config.monitor
    name = f"val_{asked}" if asked not in known and f"val_{asked}" in known else asked
    if name not in known:
        hint = suggest_names(name, known, "measured are")
        raise OptionError(f"monitor: {asked!r} is not measured\n{hint}")
    return name, known[name], ChosenSetting("monitor", name, "as given")


def choose_scores(
    config: TrainConfig, chosen: ChosenLoss, port: TensorPort
) -> ScoreSettings | None:
    """How classes are read from outputs and targets; None where they are no classes."""
    settings = _score_settings(config, chosen, port)
    return ScoreSettings(**settings) if settings else None


def _score_settings(config: TrainConfig, chosen: ChosenLoss, port: TensorPort) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if chosen.name == "cross_entropy":
        settings = {"task": "multiclass", "axis": chosen.axis}
        if isinstance(chosen.loss, (LogLikelihood, ModifiedHuber, OneVersusRest)):
            settings["probabilities"] = True
    if chosen.name == "bce_with_logits":
        several = len(port.shape) == 2 and port.shape[1] != 1
        settings = {"task": "multilabel" if several else "binary"}
    if config.ignore_index is not None and settings:
        settings["ignore_index"] = config.ignore_index
    return settings


def _make(name: str, settings: dict[str, Any], is_soft: bool) -> Metric:
    try:
        metric = make_metric(name, **settings)
    except OptionTypeError:  # it does not read classes
        metric = make_metric(name)
    return HardTargetMetric(metric) if is_soft else metric
