"""Zeros inside weights, 2:4 or anywhere: for engines with kernels for them; no CPU is faster."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
from onnx_ir._core import Usage

from onward.compress.pruning.axes import Array
from onward.compress.pruning.units import all_weights
from onward.compress.report import Change
from onward.errors import OptionError
from onward.graph.dtypes import FLOATS

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN")
NO_SPEED = (
    "zeros inside weights bring no speed on a CPU: the shapes stay as they were. They pay on "
    "engines with sparse kernels, and in packed files (onward pack)"
)


def read_pattern(pattern: str) -> tuple[int, int]:
    """A pattern such as 2:4: how many of how many weights stay.

    >>> read_pattern("2:4")
    (2, 4)
    """
    found = re.fullmatch(r"(\d+):(\d+)", pattern)
    if not found or not 0 < int(found[1]) < int(found[2]):
        raise OptionError(f"pattern is N:M, such as 2:4, not {pattern!r}")
    return int(found[1]), int(found[2])


def zero_weights(
    model: ir.Model, pattern: str | None, sparsity: float | None
) -> tuple[ir.Model, list[Change]]:
    """A copy of the model with the smallest weights of its products set to zero."""
    copy, changes = model.clone(), []
    for value in all_weights(copy):
        readers = [use for use in value.uses() if use.node.op_type in _PRODUCTS]
        tensor = value.const_value
        if not readers or value.dtype not in FLOATS or tensor is None or len(tensor.shape) < 2:
            continue
        array = tensor.numpy()
        if pattern is not None:
            zeroed = _by_pattern(array, _reduced_axis(readers[0]), *read_pattern(pattern))
        else:
            zeroed = _by_share(array, sparsity or 0.0)
        share = float((zeroed == 0).mean())
        value.const_value = ir.tensor(zeroed, tensor.dtype, name=value.name)
        changes.append(
            Change(
                name=str(value.name),
                operator=readers[0].node.op_type,
                format=f"{share:.0%} zeros",
            )
        )
    if not changes:
        raise OptionError(
            "nothing to prune: no MatMul, Gemm or Conv of the model has a constant weight"
        )
    return copy, changes


def _reduced_axis(use: Usage) -> int:
    """The axis of a weight that its product sums over."""
    if use.node.op_type == "MatMul":
        return -2 if use.idx == 1 else -1
    if use.node.op_type == "Gemm":
        is_transposed = use.node.attributes.get_int("transB" if use.idx == 1 else "transA", 0)
        return int(is_transposed) if use.idx == 1 else 1 - int(is_transposed)
    return 0 if use.node.op_type == "ConvTranspose" else -1 if use.node.op_type != "Conv" else 1


def _by_pattern(array: Array, axis: int, kept: int, block: int) -> Array:
    moved = np.moveaxis(array, axis, -1)
    whole = moved.shape[-1] // block * block
    blocks = moved[..., :whole].reshape(*moved.shape[:-1], -1, block)
    order = np.argsort(np.abs(blocks), axis=-1, kind="stable")
    mask = np.ones(blocks.shape, bool)
    np.put_along_axis(mask, order[..., : block - kept], values=False, axis=-1)
    result = moved.copy()
    result[..., :whole] = (blocks * mask).reshape(*moved.shape[:-1], whole)
    return np.ascontiguousarray(np.moveaxis(result, -1, axis))


def _by_share(array: Array, sparsity: float) -> Array:
    count = int(sparsity * array.size)
    result = array.copy()
    flat = result.reshape(-1)
    if count:
        flat[np.argpartition(np.abs(flat), count - 1)[:count]] = 0
    return result
