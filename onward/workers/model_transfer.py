"""Hand a model that lies in this process's memory to another process: as bytes or as a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.graph.external import embedded
from onward.graph.files import Source, save, weight_bytes
from onward.graph.protos import to_proto

_MAX_BYTES = 1 << 30  # protobuf ends at 2 GiB


def model_bytes(model: Any) -> bytes | None:
    """A model as bytes; None if it is too large for that and needs `write_model`."""
    data: bytes
    if isinstance(model, bytes):
        return model
    if isinstance(model, onnx.ModelProto):
        data = model.SerializeToString()
        return data
    if not isinstance(model, ir.Model):
        raise TypeError(
            "a model must be a path, bytes, an onnx.ModelProto or an onnx_ir.Model, "
            f"not {type(model).__name__}"
        )
    if weight_bytes(model) > _MAX_BYTES:
        return None
    model = model.clone()  # the caller's model must not change
    with embedded(model):
        data = to_proto(model).SerializeToString()
    return data


def write_model(model: Any, folder: Path) -> Path:
    """Write a model, with its weights, to a file in this folder."""
    path = folder / "model.onnx"
    data = model_bytes(model)
    if data is None:
        save(model.clone(), path)
    else:
        path.write_bytes(data)
    return path


@contextmanager
def model_file(source: Source) -> Iterator[Path]:
    """The model as a file: its own, or a temporary one."""
    if isinstance(source, (str, os.PathLike)):
        yield Path(source).absolute()
        return
    with tempfile.TemporaryDirectory(prefix="onward-") as folder:
        yield write_model(source, Path(folder))
