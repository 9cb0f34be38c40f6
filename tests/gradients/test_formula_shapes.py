"""Models that do not say the types behind operators that ONNX does not know."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onward.gradients.model import gradient
from onward.testing import check_gradient

MICROSOFT = "com.microsoft"


def test_shapes_after_unknown_operators_are_inferred() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node(
            "MultiHeadAttention", ["q", "q", "q"], ["a"], domain=MICROSOFT, num_heads=2
        ),
        helper.make_node("SkipLayerNormalization", ["a", "x", "g"], ["s"], domain=MICROSOFT),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(8, 8)), "g": np.ones(8)}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", "time", 8])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    feeds = {"x": rng.normal(size=(2, 3, 8))}
    found = check_gradient(model, feeds, wrt=["x", "w"], providers=["TorchExecutionProvider"])
    assert {name: gradient.shape for name, gradient in found.items()} == {
        "x": (2, 3, 8),
        "w": (8, 8),
    }


def test_a_node_with_invalid_types_is_skipped() -> None:
    """scikit-learn's converter puts ZipMap behind doubles, which ONNX does not allow."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node(
            "ZipMap", ["y"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3]
        ),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 4])
    outputs = [onnx.ValueInfoProto(name="maps")]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "g", [x], outputs)
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    extended = gradient(model, {"y": "dy"}, "x")
    assert str(extended.graph.outputs[-1].name) == "x_grad"
