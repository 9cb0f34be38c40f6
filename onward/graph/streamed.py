"""Write a model's file some bytes at a time: its weights are never all copied at once.

A message of protobuf is its fields, in any order: the graph without its large weights is one piece,
and each of these weights is a field that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.protos import to_proto

_LEAST = 1 << 12  # bytes of a weight that is a piece of its own
_GRAPH, _INITIALIZER, _RAW_DATA = (number << 3 | 2 for number in (7, 5, 9))  # tags of fields


def write_streamed(model: ir.Model, path: Path) -> None:
    """Write a model with its weights embedded, in little more memory than it takes itself."""
    large = [value for value in model.graph.initializers.values() if _is_large(value.const_value)]
    with _without(large):
        proto = to_proto(model)
    names = {value.name for value in large}
    small = [each for each in proto.graph.initializer if each.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    heads = [_head(value) for value in large]
    sizes = [len(head) + _tensor(value).nbytes for value, head in zip(large, heads, strict=True)]
    total = len(graph) + sum(len(_field(_INITIALIZER, size)) + size for size in sizes)
    with path.open("wb") as file:
        file.write(proto.SerializeToString(deterministic=True))
        file.write(_field(_GRAPH, total))
        file.write(graph)
        for value, head, size in zip(large, heads, sizes, strict=True):
            file.write(_field(_INITIALIZER, size))
            file.write(head)
            file.write(_tensor(value).tobytes())


def _is_large(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= _LEAST


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


@contextmanager
def _without(values: list[ir.Value]) -> Iterator[None]:
    """While in this context, these initializers are empty."""
    held = [(value, _tensor(value)) for value in values]
    try:
        for value in values:
            value.const_value = ir.tensor(np.zeros(0, np.float32), name=value.name)
        yield
    finally:
        for value, tensor in held:
            value.const_value = tensor


def _head(value: ir.Value) -> bytes:
    """The fields of a tensor's message up to its bytes."""
    tensor = _tensor(value)
    proto = onnx.TensorProto(
        name=value.name,
        data_type=int(tensor.dtype),
        dims=tensor.shape.numpy(),
        doc_string=tensor.doc_string or None,
    )
    for key, text in tensor.metadata_props.items():
        proto.metadata_props.add(key=key, value=text)
    return bytes(proto.SerializeToString(deterministic=True)) + _field(_RAW_DATA, tensor.nbytes)


def _field(tag: int, size: int) -> bytes:
    """The beginning of a field of so many bytes.

    >>> _field(10, 300).hex()
    '0aac02'
    """
    made = [tag]
    while size > 127:
        made.append(size & 127 | 128)
        size >>= 7
    return bytes([*made, size])
