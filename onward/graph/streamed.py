"""Write a model's file some bytes at a time: its weights are never all copied at once.

A message of protobuf is its fields, in any order: the graph without its large weights is one piece,
and each of these weights is a field that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.protos import to_proto

_LEAST = 1 << 12  # bytes of a weight that is a piece of its own
_GRAPH, _INITIALIZER, _RAW_DATA = (number << 3 | 2 for number in (7, 5, 9))  # tags of fields


class _Pieces(NamedTuple):
    """A model's message in pieces: what is around the graph, the graph, its large weights."""

    outer: bytes
    graph: bytes
    large: list[ir.Value]
    heads: list[bytes]  # of the large weights: their messages up to the bytes

    @property
    def sizes(self) -> list[int]:
        """The bytes of the messages of the large weights."""
        pairs = zip(self.large, self.heads, strict=True)
        return [len(head) + _tensor(value).nbytes for value, head in pairs]

    @property
    def graph_size(self) -> int:
        return len(self.graph) + sum(len(_field(_INITIALIZER, n)) + n for n in self.sizes)


def write_streamed(model: ir.Model, path: Path) -> None:
    """Write a model with its weights embedded, in little more memory than it takes itself."""
    pieces = _divide(model)
    with path.open("wb") as file:
        file.write(pieces.outer)
        file.write(_field(_GRAPH, pieces.graph_size))
        file.write(pieces.graph)
        for value, head, size in zip(pieces.large, pieces.heads, pieces.sizes, strict=True):
            file.write(_field(_INITIALIZER, size))
            file.write(head)
            file.write(_tensor(value).tobytes())


def streamed_bytes(model: ir.Model) -> int:
    """The bytes of a model's message with its weights embedded; nothing large is copied."""
    pieces = _divide(model)
    size = pieces.graph_size
    return len(pieces.outer) + len(_field(_GRAPH, size)) + size


def _divide(model: ir.Model) -> _Pieces:
    large = [value for value in model.graph.initializers.values() if _is_large(value.const_value)]
    with _without(large):
        proto = to_proto(model)
    names = {value.name for value in large}
    small = [each for each in proto.graph.initializer if each.name not in names]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(small)
    graph = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    outer = proto.SerializeToString(deterministic=True)
    return _Pieces(outer, graph, large, [_head(value) for value in large])


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
