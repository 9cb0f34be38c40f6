"""Describe the inputs and outputs of a graph as onnxruntime's NodeArg does."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.graph.protos import MapType
from onward.graph.signature import NodeArg


def describe(value: ir.Value) -> NodeArg:
    """The name, type and shape of an input or output."""
    shape = [] if value.shape is None else [_dimension(dim) for dim in value.shape]
    return NodeArg(str(value.name), _ort_type(value.type), shape, value.shape is not None)


def _dimension(dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, ir.SymbolicDim):
        return dim.value
    return dim if dim >= 0 else None  # exporters write -1 for any size


def _ort_type(kind: Any) -> str:
    if kind is None:
        return ""
    if isinstance(kind, ir.SequenceType):
        return f"seq({_ort_type(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_ort_type(kind.elem_type)})"
    if isinstance(kind, MapType):
        return f"map({kind.key_type.name.lower()},{_ort_type(kind.elem_type)})"
    return f"tensor({kind.dtype.name.lower()})"
