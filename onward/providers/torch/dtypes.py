"""Annotations of kernel signatures, and the torch dtype of each ONNX data type.

A kernel mirrors its ONNX signature: inputs positional, attributes keyword-only. An input's
annotation is the form in which it is passed: `Tensor` as a tensor; `Ints`, `Int`, `Floats` or
`Float` as plain Python numbers (a shape, an axis, a ratio), which keeps a graph compilable;
`Numbers` as one number or a list of them, by the input's rank; `Tensor | Int` as a number where it
is known without reading the device, else as a tensor; `Unused` not at all (it is None).

A kernel may request more by a keyword-only name: `outputs` (how many are used), `wanted` (whether
each is), `device`, `input_type` and `output_type` (ONNX's numbers, of the first one),
`output_types` and `output_shapes` (of all; None where unknown).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from onward.graph.dtypes import ELEMENT_TYPES

Tensor = torch.Tensor
Ints = list[int]
Int = int
Floats = list[float]
Float = float
Unused = Any  # an input that a call's body reads and its kernel does not
Numbers = Any  # an int, a bool, a float, or a list of them
Branch = Callable[..., tuple[Any, ...]]  # a lowered subgraph: values in, all its outputs out
LoopBody = Branch  # a Loop's: iteration, condition (numbers) and state in; condition and values out

# ONNX data type number -> torch dtype. Types that torch lacks are held by value in a wider one:
# the sub-byte integers in a byte, the sub-byte floats in a float32.
DTYPES: dict[int, torch.dtype] = {
    each.number: getattr(torch, each.torch) for each in ELEMENT_TYPES if each.onnx != "STRING"
}


def torch_dtype(onnx_type: int) -> torch.dtype:
    """The torch dtype that holds an ONNX data type."""
    return DTYPES[int(onnx_type)]
