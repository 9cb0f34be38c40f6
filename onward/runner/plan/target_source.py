"""How the target's feed is made of its column: classes as numbers, labels checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onward.errors import DataError
from onward.runner.config import TrainConfig
from onward.runner.data.class_labels import ClassLabels, OneHotLabels, check_label_range
from onward.runner.data.dataset import Array, Dataset, read_chunks
from onward.runner.data.encode import Encoder
from onward.runner.plan.column_statistics import compute_statistics
from onward.runner.plan.feed_source import FeedSource
from onward.runner.plan.guess_loss import ChosenLoss
from onward.runner.plan.model_shapes import TensorPort
from onward.runner.plan.own_classes import UNUSED, check_named, keep_places
from onward.runner.plan.target_facts import TargetFacts, check_several
from onward.runner.plan.training_plan import ChosenSetting

_OF_NUMBERS = ("mse", "l1", "huber", "smooth_l1")
_LARGE = 10.0  # times what a new layer predicts


def make_target(
    chosen: ChosenLoss,
    port: TensorPort,
    facts: TargetFacts,
    feed: str,
    known: tuple[Any, ...] = (),
    own: tuple[Any, ...] = (),
) -> tuple[FeedSource, tuple[Any, ...], list[ChosenSetting]]:
    """The target's source, and the classes of a classifier.

    `known` are the classes of an earlier training of this model, which keep their numbers; `own`
    are those that the model names itself, which no training changes.
    """
    if chosen.axis is not None and len(facts.values) > (port.shape[chosen.axis] or math.inf):
        facts = facts.without_unseen()  # there are no outputs for them: refused by row
    if own and chosen.name in ("cross_entropy", "bce_with_logits"):
        check_named(own, facts)
        known = own if set(facts.values) <= set(own) else known
    if chosen.name in ("cross_entropy", "bce_with_logits") and not known:
        check_several(facts)
    encoders: tuple[Encoder, ...] = ()
    classes: tuple[Any, ...] = ()
    choices = []
    if chosen.name == "cross_entropy" and chosen.axis is not None:
        count = port.shape[chosen.axis]
        if facts.kind in ("text", "bool") and not facts.shape:
            classes = keep_places(known, facts.values)
            encoders = (ClassLabels(facts.column, classes),)
            choices.append(ChosenSetting("classes", _shown(classes), _order(known, classes)))
        elif facts.class_names:
            classes, encoders = _named_classes(facts, known)
            why = "names that the data has for them"
            why = _order(known, classes) if set(known) & set(classes) else why
            choices.append(ChosenSetting("classes", _shown(classes), why))
        elif facts.is_one_hot and chosen.axis == 1 and len(port.shape) == 2:
            classes = tuple(range(count or 0))
            encoders = (OneHotLabels(facts.column),)
        elif count is not None and not facts.shape:
            classes = tuple(range(count))
            if known and known == own and len(own) == count:
                classes, encoders = own, (ClassLabels(facts.column, own),)
                choices.append(ChosenSetting("classes", _shown(classes), _order(known, classes)))
            elif numbers := _own_numbers(chosen, facts, count, known):
                classes, encoders = numbers, (ClassLabels(facts.column, numbers),)
                is_from_one = numbers == tuple(range(1, count + 1))
                why = (
                    "the labels start at 1" if is_from_one else "the numbers of the data, in order"
                )
                choices.append(ChosenSetting("classes", _shown(classes), why))
        if count is not None and len(classes) > count:
            raise DataError(
                f"target {facts.column!r} has {len(classes)} classes ({_shown(classes)}), the "
                f"model's output {port.name!r} has {count}\n"
                f"give the model a new last layer: new_head={len(classes)}"
            )
        if count is not None and len(classes) < count and classes:
            why = f"the model has {count} outputs, the data {len(classes)} classes"
            choices.append(ChosenSetting("unused outputs", str(count - len(classes)), why))
            classes += tuple(f"{UNUSED}{number}" for number in range(len(classes), count))
    elif chosen.name == "bce_with_logits" and not facts.shape:
        if facts.unseen or (not facts.is_two and facts.kind != "float"):
            count = len(facts.values)
            why = f", {_shown(facts.unseen)} only in rows that are held out" if facts.unseen else ""
            raise DataError(
                f"binary cross entropy needs 2 classes, target {facts.column!r} has {count}{why}\n"
                f"use a model of {count} outputs"
            )
        if facts.values:
            classes = keep_places(known, facts.values)
            if facts.class_names:
                classes, encoders = _named_classes(facts, known)
            elif facts.values != (0, 1):
                encoders = (ClassLabels(facts.column, classes),)
            choices.append(ChosenSetting("classes", _shown(classes), "0 and 1"))
    kept = {facts.column: encoders} if encoders else {}
    source = FeedSource(feed, (facts.column,), kept, chosen.dtype, chosen.shape)
    return source, classes, choices


def _named_classes(
    facts: TargetFacts, known: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Encoder, ...]]:
    """The classes of numbers that have names, and the encoder to the numbers that are known."""
    names = facts.class_names
    classes = keep_places(known, names)
    if classes[: len(names)] == names:
        return classes, ()
    numbers = tuple(
        names.index(name) if name in names else -1 - place for place, name in enumerate(classes)
    )
    return classes, (ClassLabels(facts.column, numbers),)


def _order(known: tuple[Any, ...], classes: tuple[Any, ...]) -> str:
    """Why classes have their numbers."""
    if not set(known) & set(classes):
        return "in the order of the alphabet"
    return "as the model has them" if known == classes else "those of the model, and new ones"


def explain_scale(
    chosen: ChosenLoss, facts: TargetFacts, data: Dataset, rows: Array
) -> list[ChosenSetting]:
    """Say that numbers to predict are not scaled, where they are much larger or smaller than 1."""
    if chosen.name not in _OF_NUMBERS or facts.shape:
        return []
    survey = compute_statistics(data, [facts.column], rows)[facts.column]
    if max(abs(survey.mean), survey.std) <= _LARGE and survey.std * _LARGE >= 1:
        return []
    why = (
        f"mean {survey.mean:.4g}, standard deviation {survey.std:.4g}: it is not scaled, and "
        "learning takes long; numbers of about 1 are learnt sooner"
    )
    return [ChosenSetting("target scale", "as given", why)]


def _own_numbers(
    chosen: ChosenLoss, facts: TargetFacts, count: int, known: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Whole numbers that stand for the outputs, such as 3, 7 and 9; () if they are 0, 1, 2, ..."""
    if getattr(chosen.loss, "ignore_index", None) is not None or not facts.values:
        return ()
    places, from_one = tuple(range(count)), tuple(range(1, count + 1))
    if known:  # the model was trained with them, or with others
        is_other = len(known) == count and known != places
        return known if is_other and all(isinstance(each, int) for each in known) else ()
    if (facts.values[0], facts.values[-1]) == (1, count):
        return from_one
    return facts.values if len(facts.values) == count and facts.values != places else ()


def check_labels(
    config: TrainConfig,
    chosen: ChosenLoss,
    port: TensorPort,
    source: FeedSource,
    data: Dataset,
    positions: Array | None,
) -> None:
    """Refuse labels that are no class of the model; the error names the row."""
    [column] = source.columns
    for encoder in source.encoders.get(column, ()):
        for rows, values in read_chunks(data, column, positions):
            encoder.apply(values, rows)
    if data.columns[column].dtype == "text" or source.encoders:
        return
    if chosen.name == "cross_entropy" and chosen.axis is not None:
        count = port.shape[chosen.axis]
    elif chosen.name == "bce_with_logits" and data.columns[column].dtype.kind in "iu":
        count = 2
    else:
        return
    if count is None:
        return
    for rows, values in read_chunks(data, column, positions):
        labels = values if values.dtype.kind in "iu" else values.astype(np.int64)
        if config.ignore_index is not None:
            labels = np.where(labels == config.ignore_index, 0, labels)
        check_label_range(labels, count, column, rows)


def _shown(classes: tuple[Any, ...]) -> str:
    text = ", ".join(map(str, classes[:6]))
    return f"{text}, ... ({len(classes)})" if len(classes) > 6 else text
