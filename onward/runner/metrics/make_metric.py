"""Metrics by name, and the metrics that fit a loss."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from onward.errors import OptionError, OptionTypeError
from onward.message_text import suggest_names
from onward.runner.metrics.class_scores import ScoreSettings
from onward.runner.metrics.classification import Accuracy, ClassAverage, TopKAccuracy
from onward.runner.metrics.language import Perplexity, token_accuracy
from onward.runner.metrics.log_loss import LogLoss
from onward.runner.metrics.metric import Metric
from onward.runner.metrics.ranking import AUC
from onward.runner.metrics.regression import MeanError, VarianceShare

METRICS: Mapping[str, Callable[..., Metric]] = {
    "accuracy": Accuracy,
    "top5": partial(TopKAccuracy, k=5),  # make_metric reads any number
    "precision": partial(ClassAverage, measure="precision"),
    "recall": partial(ClassAverage, measure="recall"),
    "f1": partial(ClassAverage, measure="f1"),
    "auc": AUC,
    "log_loss": LogLoss,
    "perplexity": Perplexity,
    "token_accuracy": token_accuracy,
    "mae": partial(MeanError, measure="mae"),
    "mse": partial(MeanError, measure="mse"),
    "rmse": partial(MeanError, measure="rmse"),
    "mape": partial(MeanError, measure="mape"),
    "r2": partial(VarianceShare, measure="r2"),
    "explained_variance": partial(VarianceShare, measure="explained_variance"),
}

OF_NUMBERS = ("mae", "mse", "rmse", "mape", "r2", "explained_variance")

# by the names of onward.losses; the others compare no output with a target of its kind
_CLASSES = ("crossentropy",)
_YES_OR_NO = ("bcewithlogits",)
_NUMBERS = ("mse", "l1", "huber", "smoothl1")
_NONE = ("kl", "cosine", "triplet", "ctc", "total", "output", "graph")


def make_metric(name: str, **settings: Any) -> Metric:
    """A metric by name; the fields of ScoreSettings may be given as settings of the metric.

    >>> make_metric("f1", average="macro", ignore_index=-100).name
    'f1_macro'
    >>> make_metric("top3").name
    'top3'
    """
    factory = METRICS.get(name)
    if factory is None and (number := re.fullmatch(r"top([1-9]\d*)", str(name))):
        factory = partial(TopKAccuracy, k=int(number[1]))
    if factory is None:
        raise OptionError(f"no metric {name!r}\n{suggest_names(name, METRICS)}")
    fixed = factory.keywords if isinstance(factory, partial) else {}
    parameters = inspect.signature(factory).parameters
    own = [each for each in parameters if each not in ("scores", "name", *fixed)]
    of_scores = [each.name for each in fields(ScoreSettings)] if "scores" in parameters else []
    for given in settings:
        if given not in (*own, *of_scores):
            hint = suggest_names(given, (*own, *of_scores), "its settings are")
            raise OptionTypeError(f"the metric {name!r} has no setting {given!r}\n{hint}")
    if of_scores:
        read = {each: settings.pop(each) for each in of_scores if each in settings}
        settings["scores"] = replace(parameters["scores"].default, **read)
    return factory(**settings)


def default_metrics(
    loss_name: str, output_shape: Sequence[int | str | None], axis: int | None = None
) -> list[Metric]:
    """The metrics that fit a loss of `onward.losses` and the output that it reads.

    `axis` is the one of the loss, where the classes are; None: the last of three, as language
    models have them, else 1.

    >>> [metric.name for metric in default_metrics("CrossEntropy", ("batch", 10))]
    ['accuracy', 'f1']
    >>> [metric.name for metric in default_metrics("CrossEntropy", ("batch", "time", 50257))]
    ['perplexity']
    """
    known = (*_CLASSES, *_YES_OR_NO, *_NUMBERS, *_NONE)
    loss, count = str(loss_name).lower().replace("_", ""), len(output_shape)
    if loss not in known:
        raise OptionError(f"no loss {loss_name!r}\n{suggest_names(loss, known)}")
    if loss in _NUMBERS:
        return [make_metric("mae"), make_metric("r2")]
    if loss in _CLASSES:
        if count == 3 and axis in (None, -1, 2):
            return [make_metric("perplexity")]
        chosen = {"task": "multiclass", "axis": 1 if axis is None else axis}
        return [make_metric("accuracy", **chosen), make_metric("f1", **chosen)]
    if loss in _YES_OR_NO and count == 2 and output_shape[1] != 1:
        several = {"task": "multilabel"}
        return [make_metric("accuracy", **several), make_metric("f1", **several)]
    if loss in _YES_OR_NO:
        return [make_metric("accuracy", task="binary"), make_metric("auc", task="binary")]
    return []
