"""Models of ai.onnx.ml as scikit-learn's converter writes them, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

DOMAIN = "ai.onnx.ml"
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING

W = np.array([[0.3, -0.5, 0.2, 0.8], [-0.4, 0.1, 0.6, -0.2], [0.1, 0.4, -0.8, -0.6]], np.float32)
B = np.array([0.2, -0.1, 0.3], np.float32)


def ml(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A node of ai.onnx.ml, named after its operator."""
    return helper.make_node(op_type, inputs, outputs, name=op_type, domain=DOMAIN, **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    version: int = 1,
) -> onnx.ModelProto:
    """A model of these nodes; of outputs, only the name may be given."""
    named = [onnx.ValueInfoProto(name=y) if isinstance(y, str) else y for y in outputs]
    graph = helper.make_graph(list(nodes), "g", list(inputs), named, list(initializers))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def table(name: str = "x", columns: int = 4, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, ["n", columns])


def scaler(x: str = "x", y: str = "scaled", columns: int = 4) -> Any:
    """StandardScaler."""
    offset = [0.5 * i for i in range(columns)]
    return ml("Scaler", [x], [y], offset=offset, scale=[1.0 + 0.5 * i for i in range(columns)])


def linear_classifier(
    rows: int = 3, transform: str = "SOFTMAX", labels: Sequence[Any] = (0, 1, 2), **more: Any
) -> Any:
    """LogisticRegression: labels and scores of what was scaled."""
    kind = "classlabels_strings" if labels and isinstance(labels[0], str) else "classlabels_ints"
    more |= {kind: list(labels)} if labels else {}
    return ml(
        "LinearClassifier",
        ["scaled"],
        ["label", "scores"],
        coefficients=W[:rows].reshape(-1).tolist(),
        intercepts=B[:rows].tolist(),
        post_transform=transform,
        **more,
    )


def classifier(**settings: Any) -> onnx.ModelProto:
    """StandardScaler and LogisticRegression, scores as a tensor."""
    return model([scaler(), linear_classifier(**settings)], [table()], ["label", "scores"])


def zipped_classifier(labels: Sequence[Any] = (0, 1, 2)) -> onnx.ModelProto:
    """The same as it is converted by default: scores as a list of maps."""
    texts = isinstance(labels[0], str)
    key, kind = (STRING, "classlabels_strings") if texts else (INT64, "classlabels_int64s")
    value = helper.make_tensor_type_proto(FLOAT, None)
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    nodes = [
        scaler(),
        linear_classifier(labels=labels),
        ml("ZipMap", ["scores"], ["maps"], **{kind: list(labels)}),
    ]
    label = helper.make_tensor_value_info("label", key, ["n"])
    return model(nodes, [table()], [label, helper.make_value_info("maps", maps)])


def dict_vectorizer() -> onnx.ModelProto:
    """DictVectorizer and LinearRegression."""
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, None))
    nodes = [
        ml("DictVectorizer", ["x"], ["v"], string_vocabulary=["a", "b", "c"]),
        ml("LinearRegressor", ["v"], ["y"], coefficients=[1.0, 2.0, 3.0], intercepts=[0.5]),
    ]
    y = helper.make_tensor_value_info("y", FLOAT, [1, 1])
    return model(nodes, [helper.make_value_info("x", kind)], [y])
