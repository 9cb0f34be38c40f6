"""Write sparse initializers as dense ones: onnx-ir leaves them out, and few engines have them.

The scan of a model has already checked how large they become, and that their data is in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx

from onward.errors import InvalidModel


def densify(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with dense initializers only; a copy if it has sparse ones."""
    if not any(graph.sparse_initializer for graph in _graphs(proto.graph)):
        return proto
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for graph in _graphs(dense.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_to_dense(sparse))
        del graph.sparse_initializer[:]
    return dense


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and every subgraph."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _to_dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """A tensor of its values and zeros; an index is one number, or one for each axis."""
    name, shape = sparse.values.name, tuple(sparse.dims)
    count = math.prod(shape)
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
    if places.shape != values.shape or not all(0 <= place < count for place in places):
        raise InvalidModel(f"sparse initializer {name!r} has indices that do not fit its values")
    dense = np.zeros(count, values.dtype)
    dense[places] = values
    return onnx.numpy_helper.from_array(dense.reshape(shape), name)
