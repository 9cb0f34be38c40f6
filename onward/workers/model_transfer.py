"""A model that lies in this process's memory, as what another process can open."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.external import embedded
from onward.graph.files import save, weight_bytes
from onward.graph.protos import to_proto

_BYTES_AT_MOST = 1 << 30  # beyond it, protobuf does not go


def ship(model: Any) -> tuple[bytes, None] | tuple[None, tempfile.TemporaryDirectory[str]]:
    """The model's bytes; or a folder with a model.onnx, where it is too large for that."""
    if isinstance(model, onnx.ModelProto):
        return model.SerializeToString(), None
    if not isinstance(model, ir.Model):
        raise TypeError(
            "a model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
            f"not {type(model).__name__}"
        )
    model = model.clone()  # the user's own stays as it is
    if weight_bytes(model) <= _BYTES_AT_MOST:
        with embedded(model):
            return to_proto(model).SerializeToString(), None
    folder = tempfile.TemporaryDirectory(prefix="onward-")
    save(model, Path(folder.name) / "model.onnx")
    return None, folder
