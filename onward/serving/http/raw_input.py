"""Raw binary requests: a body without JSON that is the one input of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from onward.errors import RequestInvalid
from onward.serving.requests import Array, TensorSpec
from onward.serving.tensor_data import DATATYPES, from_raw


def read_raw_input(
    model: str, inputs: Sequence[TensorSpec], body: bytes | memoryview
) -> tuple[str, Array]:
    """The name and the tensor; one size of its shape may follow from the number of bytes."""
    if len(inputs) != 1:
        raise RequestInvalid(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(inputs)} inputs in '{model}' model configuration"
        )
    spec = inputs[0]
    if spec.datatype == "BYTES":
        if any(size not in (1, -1) for size in spec.shape):
            raise RequestInvalid(
                f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]"
            )
        text = np.empty(1, object)
        text[0] = bytes(body)
        return spec.name, text.reshape([1] * len(spec.shape))
    shape = _shape_of(spec, len(body))
    return spec.name, from_raw(spec.name, spec.datatype, shape, body)


def _shape_of(spec: TensorSpec, size: int) -> tuple[int, ...]:
    shape = list(spec.shape)
    if shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1  # one row of a batch
    if shape.count(-1) > 1:
        raise RequestInvalid(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more "
            "than one variable-sized dimension"
        )
    if -1 in shape:
        row = -math.prod(shape) * DATATYPES[spec.datatype].itemsize
        if row and size % row:
            raise RequestInvalid(
                f"the raw input '{spec.name}' has {size:,} bytes, which is no multiple of {row:,}: "
                f"{spec.datatype} {list(spec.shape)}"
            )
        shape[shape.index(-1)] = size // row if row else 0
    return tuple(shape)
