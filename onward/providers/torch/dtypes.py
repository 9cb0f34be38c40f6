"""The words that a kernel's signature uses, and ONNX's data types as torch's.

A kernel mirrors its ONNX signature: inputs positional, attributes keyword-only. What it annotates
an input with says how it wants it: `Tensor` as a tensor; `Ints`, `Int`, `Floats` or `Float` as
plain Python numbers (a shape, an axis, a ratio), which is what keeps a graph compilable;
`Numbers` as one number or a list of them, by the input's rank; `Tensor | Int` as a number where it
is known without a look at the device, else as a tensor; `Unused` not at all (it comes as None).

What neither inputs nor attributes tell, a kernel asks for by a keyword-only name: `outputs` (how
many are wanted), `wanted` (whether each is), `device`, `input_type` and `output_type` (ONNX's
numbers, of the first one), `output_types` and `output_shapes` (of all; None where not known).
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
Unused = Any  # an input of a call that its body reads and its kernel does not
Numbers = Any  # an int, a bool, a float, or a list of them
Branch = Callable[..., tuple[Any, ...]]  # a lowered subgraph: values in, all its outputs out
Body = Branch  # a Loop's: iteration, condition (numbers) and state in; condition and values out

# ONNX data type number -> torch dtype. What torch lacks is held by value in a wider type:
# the sub-byte integers in a byte, the sub-byte floats in a float32.
DTYPES: dict[int, torch.dtype] = {
    each.number: getattr(torch, each.torch) for each in ELEMENT_TYPES if each.onnx != "STRING"
}


def torch_dtype(onnx_type: int) -> torch.dtype:
    """The torch dtype that holds an ONNX data type."""
    return DTYPES[int(onnx_type)]
