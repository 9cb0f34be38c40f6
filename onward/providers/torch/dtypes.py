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
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
    21: torch.uint8,  # UINT4
    22: torch.int8,  # INT4
    23: torch.float32,  # FLOAT4E2M1
    24: torch.float8_e8m0fnu,
    25: torch.uint8,  # UINT2
    26: torch.int8,  # INT2
    27: torch.float32,  # FLOAT6E2M3
    28: torch.float32,  # FLOAT6E3M2
}


def torch_dtype(onnx_type: int) -> torch.dtype:
    """The torch dtype that holds an ONNX data type."""
    return DTYPES[int(onnx_type)]
