"""Read the data that a student is trained on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.errors import DataError
from onward.graph.node_args import describe
from onward.graph.signature import NodeArg

BATCH = 32  # rows of a batch if the user gives no number


def read_data(
    data: Any,
    student: ir.Model,
    teachers: Sequence[ir.Model],
    target: str | None,
    batch: int | None,
    seed: int,
) -> Calibration:
    """The batches, of the student's inputs and of those that only teachers have."""
    if data is None:
        raise DataError(
            "distillation needs data: what the teacher answers\n"
            "give a file, arrays by input name, or feeds; labels are not needed"
        )
    own = {arg.name: arg for arg in _inputs(student)}
    more = {arg.name: arg for model in reversed(teachers) for arg in _inputs(model)}
    inputs = {**{name: _with_any_batch(arg) for name, arg in more.items()}, **own}
    rows = _shuffle_rows(data, seed)
    return Calibration(rows, list(inputs.values()), target=target, batch=batch or BATCH)


def _inputs(model: ir.Model) -> list[NodeArg]:
    return [describe(value) for value in model.graph.inputs if not value.is_initializer()]


def _with_any_batch(arg: NodeArg) -> NodeArg:
    """An input that only teachers have: they answer larger batches in parts."""
    shape = [None, *arg.shape[1:]] if arg.shape else []
    return NodeArg(arg.name, arg.type, shape, arg.is_ranked)


def _shuffle_rows(data: Any, seed: int) -> Any:
    """Arrays with their rows in another order, so that sorted data makes mixed batches."""
    if isinstance(data, (str, os.PathLike)) and Path(data).suffix == ".npz" and Path(data).exists():
        with np.load(data, allow_pickle=False) as loaded:
            data = {name: loaded[name] for name in loaded.files}
    if not isinstance(data, Mapping):
        return data
    arrays = {name: np.asarray(array) for name, array in data.items()}
    counts = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(counts) != 1 or 0 in counts:
        return data
    order = np.random.default_rng(seed).permutation(counts.pop())
    return {name: array[order] for name, array in arrays.items()}
