"""Serialize a model for OpenVINO, with pointers to the larger weights instead of copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.external import embedded
from onward.passes.downgrade import lower_opset
from onward.providers.openvino.defects import merged_casts

NEWEST_OPSET = 24  # newer ones are read as if they were this one
_IN_MEMORY = (
    "*/_ORT_MEM_ADDR_/*"  # the file name for which OpenVINO (2025.4) takes the offset as an address
)
_EMBEDDED_AT_MOST = 1024  # bytes

Array = np.ndarray[Any, Any]


def serialize(model: ir.Model) -> tuple[bytes, list[Array]]:
    """The bytes, and the arrays that they point to, which must outlive the compiled model.

    The model is not changed. Outputs may be added that keep OpenVINO from merging Casts. Weights
    are not copied, and protobuf's limit of 2 GB does not apply to them.
    """
    copy = lower_opset(model.clone(), NEWEST_OPSET)
    copy.graph.outputs.extend(value for value in merged_casts(copy.graph))
    arrays: list[Array] = []
    with embedded(copy):
        for graph in copy.graphs():
            for name, value in list(graph.initializers.items()):
                tensor = value.const_value
                if value.is_graph_input():  # OpenVINO would make a constant of it
                    del graph.initializers[name]
                elif tensor is not None and _is_plain(tensor) and tensor.nbytes > _EMBEDDED_AT_MOST:
                    array = np.ascontiguousarray(tensor.numpy())
                    arrays.append(array)
                    value.const_value = _pointer(array, tensor, name)
        return ir.to_proto(copy).SerializeToString(), arrays


def _is_plain(tensor: ir.TensorProtocol) -> bool:
    """Whether each element takes whole bytes, in numpy and in ONNX."""
    return tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8


def _pointer(array: Array, tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(
        _IN_MEMORY, array.ctypes.data, array.nbytes, tensor.dtype, shape=shape, name=name
    )
