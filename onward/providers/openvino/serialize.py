"""A model as OpenVINO reads it: bytes, with the larger weights left where they lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.external import embedded
from onward.passes.downgrade import lower_opset
from onward.providers.openvino.defects import merged_casts

NEWEST_OPSET = 24  # it reads newer ones as if they said the same
_IN_MEMORY = "*/_ORT_MEM_ADDR_/*"  # OpenVINO's word (2025.4) for "the offset is an address"
_EMBEDDED_AT_MOST = 1024  # bytes

Array = np.ndarray[Any, Any]


def serialize(model: ir.Model) -> tuple[bytes, list[Array]]:
    """The bytes, and the arrays that they point at: those must outlive whatever reads them.

    The model itself is not changed; what it gives may be followed by results that only keep
    OpenVINO from a mistake. Weights are neither copied nor held to protobuf's 2 GB.
    """
    copy = lower_opset(model.clone(), NEWEST_OPSET)
    copy.graph.outputs.extend(value for value in merged_casts(copy.graph))
    pointed: list[Array] = []
    with embedded(copy):
        for graph in copy.graphs():
            for name, value in list(graph.initializers.items()):
                tensor = value.const_value
                if value.is_graph_input():  # OpenVINO would make a constant of it
                    del graph.initializers[name]
                elif tensor is not None and _is_plain(tensor) and tensor.nbytes > _EMBEDDED_AT_MOST:
                    array = np.ascontiguousarray(tensor.numpy())
                    pointed.append(array)
                    value.const_value = _pointer(array, tensor, name)
        return ir.to_proto(copy).SerializeToString(), pointed


def _is_plain(tensor: ir.TensorProtocol) -> bool:
    """Whether an element is one or more whole bytes, in numpy as in ONNX."""
    return tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8


def _pointer(array: Array, tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(
        _IN_MEMORY, array.ctypes.data, array.nbytes, tensor.dtype, shape=shape, name=name
    )
