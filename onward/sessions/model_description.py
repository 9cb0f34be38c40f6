"""Functions that read the metadata of a model and the numpy type of a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.node_args import describe as describe
from onward.sessions.model_metadata import ModelMetadata


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


def numpy_dtype(value: ir.Value) -> np.dtype[Any] | None:
    """The type of a value's numpy array; None for text and unknown types."""
    if value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return np.dtype(value.dtype.numpy())
