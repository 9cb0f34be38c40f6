"""Models with sparse initializers: their values are those of onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onward.errors import InvalidModel, LimitExceeded, UnsafeModel
from onward.graph.files import load
from onward.graph.limits import DEFAULT_LIMITS
from onward.sessions.inference import InferenceSession

W = np.zeros((4, 3), np.float32)
W[0, 2], W[3, 1], W[2, 0] = 1.5, -2, 4
PLACES = np.flatnonzero(W)


def sparse(indices: list[int] | list[list[int]], name: str = "w") -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(W.ravel()[PLACES], name)
    places = numpy_helper.from_array(np.array(indices, np.int64), f"{name}_places")
    return helper.make_sparse_tensor(values, places, list(W.shape))


def model(weight: onnx.SparseTensorProto, *, inside: bool = False) -> onnx.ModelProto:
    """y = x w; `inside`: in a branch of If, which holds the weight."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 4), ("y", 3))
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if inside:
        z = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
        node = helper.make_node("MatMul", ["x", "w"], ["z"])
        branch = helper.make_graph([node], "branch", [], [z], sparse_initializer=[weight])
        made = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
        nodes = [helper.make_node("Constant", [], ["c"], value=helper.make_tensor("", 9, [], [1]))]
        nodes.append(made)
    kept = [] if inside else [weight]
    graph = helper.make_graph(nodes, "g", [x], [y], sparse_initializer=kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("by_axis", [False, True])
def test_sparse_initializers_are_as_in_onnxruntime(by_axis: bool, inside: bool) -> None:
    indices = np.argwhere(W).tolist() if by_axis else PLACES.tolist()
    proto = model(sparse(indices), inside=inside)
    before = proto.SerializeToString()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    found = InferenceSession(proto).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, x @ W, rtol=1e-6)
    if not inside:
        expected = onnxruntime.InferenceSession(before).run(None, {"x": x})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert proto.SerializeToString() == before


def test_wrong_sparse_initializers_are_refused() -> None:
    with pytest.raises(InvalidModel, match="'w' has indices that do not fit"):
        load(model(sparse([0, 1, 12])))
    with pytest.raises(LimitExceeded, match="'w': 12 elements once it is dense"):
        load(model(sparse(PLACES.tolist())), replace(DEFAULT_LIMITS, folded_elements=11))
    outside = model(sparse(PLACES.tolist()))
    values = outside.graph.sparse_initializer[0].values
    onnx.external_data_helper.set_external_data(values, "w.bin")
    with pytest.raises(UnsafeModel, match="external data of 'w'"):
        load(outside)
