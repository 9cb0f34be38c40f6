"""Which rows are trained on, and which are held out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onward.errors import DataError, OptionError
from onward.runner.config import TrainConfig
from onward.runner.data.dataset import Array, Dataset, read_column
from onward.runner.data.order import class_balanced, split
from onward.runner.plan.target_facts import TargetFacts
from onward.runner.plan.training_data import TrainingData
from onward.runner.plan.training_plan import ChosenSetting

_ROWS_OF_A_CLASS = 3  # on average; whole numbers with fewer are not classes


@dataclass(frozen=True)
class RowSplit:
    """The rows of both parts; the held-out ones may be of another dataset, or none."""

    training: Array
    validation: Array | None
    held_out: Dataset | None
    choice: ChosenSetting


def split_rows(config: TrainConfig, data: TrainingData, facts: TargetFacts | None) -> RowSplit:
    """Hold out the validation data, or a share of the rows, of each class if there are classes."""
    count = len(data.training)
    if data.validation is not None:
        rows = np.arange(len(data.validation))
        if not len(rows):
            raise DataError("the validation data has no rows\ngive other data, or none")
        why = "data of their own"
        if config.validation_split != TrainConfig.model_fields["validation_split"].default:
            why += f"; validation_split {config.validation_split:g} is not used"
        choice = ChosenSetting("validation", _rows(len(rows)), why)
        return RowSplit(np.arange(count), rows, data.validation, choice)
    if not config.validation_split:
        choice = ChosenSetting("validation", "none", "validation_split is 0")
        return RowSplit(np.arange(count), None, None, choice)
    labels = None
    why = f"a share of {config.validation_split:g}, at random"
    if facts is not None and facts.is_discrete and len(facts.values) * _ROWS_OF_A_CLASS <= count:
        labels = read_column(data.training, facts.column).reshape(count)
        why = f"a share of {config.validation_split:g} of each class"
    training, held = split(count, config.validation_split, config.seed, labels)
    if not len(held):  # every class has one row
        training, held = split(count, config.validation_split, config.seed)
    if not len(held):
        raise DataError(
            f"the data has {_rows(count)}: none is left to evaluate on\n"
            "give more rows, or validation_split=0"
        )
    return RowSplit(
        training, held, data.training, ChosenSetting("validation", _rows(len(held)), why)
    )


def balanced_order(
    config: TrainConfig, data: Dataset, rows: Array, facts: TargetFacts | None
) -> Callable[[int], Array] | None:
    """The order in which rows of every class come equally often; None: each row once."""
    if not config.balance:
        return None
    if facts is None or not facts.is_discrete:
        raise OptionError("balance needs a target of classes\nleave it out, or name another target")
    labels = read_column(data, facts.column, rows).reshape(len(rows))
    return lambda epoch: class_balanced(labels, config.seed, epoch)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
