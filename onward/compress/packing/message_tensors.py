"""The tensors of a model's message: take their bytes out of it and put them back.

A message that lost its tensors refers to them as external data, by their number in the packed file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.packed.container import Use

Array = np.ndarray[Any, Any]

AT_LEAST = 1024  # bytes; smaller tensors stay in the message, where shapes are read from them
_LOCATION = "packed"
_EXPLICIT = "data_location"
_TYPED = {  # fields other than raw_data whose elements have the type of the tensor
    "float_data": (onnx.TensorProto.FLOAT, "<f4"),
    "double_data": (onnx.TensorProto.DOUBLE, "<f8"),
}


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model's message, subgraphs and functions included.

    Those of training graphs are not: `onward.graph.training_info` reads them from the message.
    """
    yield from _graph_tensors(proto.graph)
    for function in proto.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            graphs = [attribute.g] if attribute.HasField("g") else []
            for graph in (*graphs, *attribute.graphs):
                yield from _graph_tensors(graph)


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's data is in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def entries_of(tensor: onnx.TensorProto) -> dict[str, str]:
    """The entries of a tensor's external data: its location, offset, length, checksum."""
    return {entry.key: entry.value for entry in tensor.external_data}


def explicit_location(tensor: onnx.TensorProto) -> dict[str, str]:
    """An entry that says that an embedded tensor names its location, as onnx writes it.

    `onnx.load` sets the field, to its default, in models whose external data it has read.
    """
    return {_EXPLICIT: "DEFAULT"} if tensor.HasField("data_location") else {}


def embedded_bytes(tensor: onnx.TensorProto) -> tuple[str, Array] | None:
    """The field that holds a tensor's bytes, and the bytes; None if it stays in the message."""
    if tensor.data_type == onnx.TensorProto.STRING or is_external(tensor):
        return None
    if tensor.external_data:  # entries without a meaning, which a reference would replace
        return None
    if len(tensor.raw_data) >= AT_LEAST:
        data = np.frombuffer(tensor.raw_data, np.uint8)
        return ("raw_data", data) if len(data) == _needed(tensor) else None
    for field, (kind, numpy_type) in _TYPED.items():
        values = getattr(tensor, field)
        if tensor.data_type == kind and len(values) * np.dtype(numpy_type).itemsize >= AT_LEAST:
            array = np.array(values, numpy_type)
            # Python's floats do not keep every NaN's bits
            is_exact = array.nbytes == _needed(tensor) and not np.isnan(array).any()
            return (field, array.view(np.uint8)) if is_exact else None
    return None


def _needed(tensor: onnx.TensorProto) -> int:
    bits = ir.DataType(tensor.data_type).bitwidth * int(np.prod(tensor.dims, dtype=np.int64))
    return (bits + 7) // 8


def refer_to(tensor: onnx.TensorProto, number: int, field: str, size: int) -> None:
    """Replace a tensor's data by the number of its block."""
    if field != "external_data":
        tensor.ClearField(field)
    _set_entries(tensor, {"location": _LOCATION, "offset": str(number), "length": str(size)})
    tensor.data_location = onnx.TensorProto.EXTERNAL


def restore(tensor: onnx.TensorProto, use: Use, data: Array | None) -> None:
    """Undo `refer_to`; `data` is None for external data, which goes to its own file."""
    del tensor.external_data[:]
    if use.field_name == "external_data":
        _set_entries(tensor, use.external)
        return
    assert data is not None
    tensor.ClearField("data_location")
    if _EXPLICIT in use.external:
        tensor.data_location = onnx.TensorProto.DEFAULT
    if use.field_name == "raw_data":
        tensor.raw_data = data.tobytes()
    else:
        getattr(tensor, use.field_name).extend(data.view(_TYPED[use.field_name][1]))


def _set_entries(tensor: onnx.TensorProto, entries: Mapping[str, str]) -> None:
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def is_reference(tensor: onnx.TensorProto) -> bool:
    """Whether `refer_to` took the data of this tensor."""
    return is_external(tensor) and entries_of(tensor).get("location") == _LOCATION
