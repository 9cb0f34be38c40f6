"""Shapes, axes and counts as Python numbers on the host: which values may be, and conversions.

They stay on the host while a lowered graph runs, so that Inductor sees symbols
and the host does not wait for a device. Longer values, and other types, are tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

RANKS = {"Numbers": 1, "Grid": 2}  # the highest rank that each annotation of a host function allows
_TYPES = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL}
_COUNTED = {"ConstantOfShape", "Expand", "Range"}  # one of their inputs gives the length
_LARGEST_LITERAL = 1024  # elements of a constant that may be written into the source
_LONGEST_LIST = 64  # numbers that stay on the host: shapes are short, data is not


def literal(value: ir.Value, *, floats: bool = False) -> Any:
    """A small constant of rank 0 or 1 as Python numbers, else None."""
    tensor = value.const_value
    if tensor is None or value.is_graph_input():
        return None
    if tensor.size > _LARGEST_LITERAL or len(tensor.shape) > 1:
        return None
    if tensor.dtype not in _TYPES and not (floats and tensor.dtype.is_floating_point()):
        return None
    array = tensor.numpy()
    return (array.astype(np.float64) if tensor.dtype.is_floating_point() else array).tolist()


def is_short(output: ir.Value, rank: int, operator: str) -> bool:
    """Whether an output can be plain numbers: integers, and provably few of them."""
    if output.dtype not in _TYPES or output.shape is None or output.shape.rank() > rank:
        return False
    return all(
        size <= _LONGEST_LIST if isinstance(size, int) else operator not in _COUNTED
        for size in output.shape
    )


def as_tensor(numbers: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of rank 0 or more from Python numbers."""
    if isinstance(numbers, list):
        if device.type != "cuda" or torch.compiler.is_compiling():
            return torch.tensor(numbers, dtype=dtype, device=device)
        pinned = torch.tensor(numbers, dtype=dtype, pin_memory=True)
        return pinned.to(
            device, non_blocking=True
        )  # memory that is not pinned would wait for the GPU
    return torch.full((), numbers, dtype=dtype, device=device)  # created on the device: no copy


def as_numbers(value: Any) -> Any:
    """Python numbers from a tensor of rank 0 or 1: one, or a list of them."""
    return value.tolist() if isinstance(value, torch.Tensor) else value


def as_list(value: Any) -> list[Any]:
    """Python numbers as a list, one number as a list of one."""
    numbers = as_numbers(value)
    return list(numbers) if isinstance(numbers, list) else [numbers]


def as_scalar(value: Any) -> Any:
    """The one Python number that a value holds."""
    (number,) = as_list(value)
    return number


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Ints": as_list,
    "Floats": as_list,
    "Int": as_scalar,
    "Float": as_scalar,
    "Numbers": as_numbers,
    "Grid": as_numbers,
}
