"""Rows that count more or less than others: a column of weights, and the loss with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onward.errors import ColumnMissing, DataError, OptionError
from onward.graph.graph_ops import GraphOps
from onward.losses.loss import Loss, Values, reduced, sizes_of
from onward.losses.loss import target as target_of
from onward.message_text import suggest_names
from onward.runner.config import TrainConfig
from onward.runner.data.dataset import Array, Column, Dataset, read_chunks


@dataclass(frozen=True)
class RowWeights:
    """The feed of weights: those of a column, by their mean; rows to evaluate on count alike."""

    feed: str
    column: str
    mean: float

    def of(self, columns: Mapping[str, Array]) -> Array:
        """The weights of a batch to train on."""
        weights = columns[self.column].reshape(-1).astype(np.float64) / self.mean
        return weights.astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class WeightedRows:
    """The mean over rows of a row's weight times the mean of its losses.

    Attributes:
        loss: the loss of each element, with reduction "none"
        target: the input with the weight of each row
    """

    loss: Loss
    target: str
    is_mean_of_rows: ClassVar[bool] = True  # as processes that share a batch count it

    def build(self, op: GraphOps, values: Values) -> ir.Value:
        each = self.loss.build(op, values)  # (rows, ...)
        inner = list(range(1, len(sizes_of(each))))
        rows = op.ReduceMean(each, inner, keepdims=0) if inner else each
        weights = target_of(op, self, values, self.target, "float32", sizes_of(rows))
        mean: ir.Value = reduced(op, op.Mul(rows, op.cast_like(weights, rows)), "mean")
        return mean


def check_row_weights(config: TrainConfig, columns: Mapping[str, Column]) -> None:
    """Refuse weights that are no column of numbers, and settings that they do not go with."""
    name = config.row_weights
    if name is None:
        return
    if name not in columns:
        hint = suggest_names(name, columns, "its columns are")
        raise ColumnMissing(f"row_weights: the data has no column {name!r}\n{hint}")
    if name == config.target or name in config.ignore_columns:
        other = "the target" if name == config.target else "in ignore_columns"
        raise OptionError(f"row_weights: column {name!r} is {other}\nname another column")
    column = columns[name]
    if not column.is_number or column.dtype.kind not in "iuf" or column.shape not in ((), (1,)):
        raise DataError(
            f"row_weights: column {name!r} has {column}, not one number for each row\n"
            "name another column"
        )
    refused = {
        "loss='output'": config.loss == "output",
        "ignore_index": config.ignore_index is not None,
        "mixup": bool(config.mixup),
    }
    for given, is_set in refused.items():
        if is_set:
            raise OptionError(f"row_weights do not go with {given}\nleave one of them out")


def read_row_weights(
    config: TrainConfig, data: Dataset, positions: Array, feed: str
) -> RowWeights | None:
    """The weights of the rows to train on; None: all count alike."""
    name = config.row_weights
    if name is None:
        return None
    total = 0.0
    for rows, values in read_chunks(data, name, positions):
        weights = values.reshape(-1).astype(np.float64)
        wrong = ~(np.isfinite(weights) & (weights >= 0))
        if wrong.any():
            place = int(np.argmax(wrong))
            raise DataError(
                f"row {rows[place]}, column {name!r} (row_weights): {weights[place]:g} is not a "
                "number of 0 or more\ncorrect the data"
            )
        total += float(weights.sum())
    if not total:
        raise DataError(f"row_weights: every row has 0 in column {name!r}\ncorrect the data")
    return RowWeights(feed, name, total / len(positions))


def weighted(loss: Loss, weights: RowWeights | None) -> Loss:
    """A loss whose rows count by their weights."""
    if weights is None:
        return loss
    each: Any = loss
    return WeightedRows(loss=replace(each, reduction="none"), target=weights.feed)
