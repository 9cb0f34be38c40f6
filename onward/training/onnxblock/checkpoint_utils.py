"""Save a training block's parameters as a checkpoint, and load checkpoints into models."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from onward.checkpoints import file_contents, peer_files
from onward.checkpoints.file_contents import Array, StrPath
from onward.checkpoints.model_match import fingerprint
from onward.errors import CheckpointMismatch
from onward.training.onnxblock.onnxblock import Parameters


def save_checkpoint(
    parameters: Parameters,
    path_to_checkpoint: StrPath,
    nominal_checkpoint: bool = False,
) -> None:
    """Write what TrainingBlock.parameters() returns; a nominal file has names without data."""
    if parameters is None:
        raise RuntimeError(
            "No checkpoint parameters provided.\nPass what TrainingBlock.parameters() returns."
        )
    trainable, frozen = (
        {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
        for tensors in parameters
    )
    write_checkpoint(trainable, frozen, path_to_checkpoint, nominal=nominal_checkpoint)


def write_checkpoint(
    trainable: Mapping[str, Array], frozen: Mapping[str, Array], path: StrPath, *, nominal: bool
) -> None:
    """Write parameters without copying them; a nominal file has names without data."""
    stored = {
        name: file_contents.StoredParameter(
            kind is trainable,
            None
            if nominal and array.dtype == "float32"
            else array,  # copy_buffer_to_parameters cannot load others
        )
        for kind in (trainable, frozen)
        for name, array in kind.items()
    }
    model = fingerprint({name: array.shape for name, array in trainable.items()})
    file_contents.write(path, file_contents.Contents(stored, model=model))


def load_checkpoint_to_model(path_to_checkpoint: StrPath, model: onnx.ModelProto) -> None:
    """Set the model's initializers, in place, to the checkpoint's parameters.

    The checkpoint may be one of onnxruntime.training's own files.
    """
    reader = peer_files if peer_files.is_peer_file(path_to_checkpoint) else file_contents
    found = reader.read(path_to_checkpoint).parameters
    for tensor in model.graph.initializer:
        stored = found.get(tensor.name)
        if stored is None or stored.data is None:
            continue
        if tuple(tensor.dims) != stored.data.shape:
            raise CheckpointMismatch(
                f"parameter {tensor.name!r} has shape {tuple(tensor.dims)} in the model and "
                f"{stored.data.shape} in {os.fspath(path_to_checkpoint)}\n"
                "load the checkpoint of this model"
            )
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        new = ir.to_proto(ir.tensor(np.ascontiguousarray(stored.data, kind), name=tensor.name))
        tensor.CopyFrom(new)
