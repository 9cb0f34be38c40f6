"""onnxruntime.training.utils.torch_io_helper's names: nested data as tensors and a schema."""

from __future__ import annotations

from typing import Any

from onward.pytorch.nested_data import (
    PrimitiveType,
    extract_data_and_schema,
    unflatten_data_using_schema,
)
from onward.pytorch.nested_data import TensorStub as _TensorStub

# For annotations: nested sequences, mappings and dataclasses of tensors, numbers, strings, None;
# and the same with a _TensorStub in the place of each tensor.
ORTModelInputOutputType = Any
ORTModelInputOutputSchemaType = Any

__all__ = [
    "ORTModelInputOutputSchemaType",
    "ORTModelInputOutputType",
    "PrimitiveType",
    "_TensorStub",
    "extract_data_and_schema",
    "unflatten_data_using_schema",
]
