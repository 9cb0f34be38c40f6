"""What a model says about itself, in ONNX Runtime's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.protos import MapType
from onward.graph.signature import NodeArg
from onward.sessions.metadata import ModelMetadata

_WORDS = {"FLOAT": "float", "DOUBLE": "double"}


def metadata(model: ir.Model) -> ModelMetadata:
    """The metadata of a model."""
    return ModelMetadata(
        producer_name=model.producer_name or "",
        graph_name=model.graph.name or "",
        domain=model.domain or "",
        description=model.doc_string or "",
        graph_description=model.graph.doc_string or "",
        version=model.model_version or 0,
        custom_metadata_map=dict(model.metadata_props),
    )


def describe(value: ir.Value) -> NodeArg:
    """An input or output: its name, type and shape."""
    shape = [] if value.shape is None else [_dimension(dim) for dim in value.shape]
    return NodeArg(str(value.name), _spell(value.type), shape, value.shape is not None)


def numpy_dtype(value: ir.Value) -> np.dtype[Any] | None:
    """The type of a value's numpy array; None for text and for what is not known."""
    if value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return np.dtype(value.dtype.numpy())


def _dimension(dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, ir.SymbolicDim):
        return dim.value
    return dim if dim >= 0 else None  # exporters write -1 for any size


def _spell(kind: Any) -> str:
    if kind is None:
        return ""
    if isinstance(kind, ir.SequenceType):
        return f"seq({_spell(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_spell(kind.elem_type)})"
    if isinstance(kind, MapType):
        return f"map({_word(kind.key_type)},{_spell(kind.elem_type)})"
    return f"tensor({_word(kind.dtype)})"


def _word(dtype: ir.DataType) -> str:
    return _WORDS.get(dtype.name, dtype.name.lower())
