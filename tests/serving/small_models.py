"""Small models for tests of serving, as bytes and as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper


def scale_model(
    factor: float = 2.0,
    shape: Sequence[int | str] = ("batch", 4),
    dtype: int = TensorProto.FLOAT,
    names: tuple[str, str] = ("x", "y"),
    metadata: dict[str, str] | None = None,
) -> bytes:
    """y = factor * x."""
    source, target = names
    graph = helper.make_graph(
        [helper.make_node("Mul", [source, "factor"], [target])],
        "scale",
        [helper.make_tensor_value_info(source, dtype, list(shape))],
        [helper.make_tensor_value_info(target, dtype, list(shape))],
        [helper.make_tensor("factor", dtype, [], [factor])],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    helper.set_model_props(model, metadata or {})
    return bytes(model.SerializeToString())


def default_model(ir_version: int = 8) -> bytes:
    """y = factor * (x @ w) as old exporters write it: initializers are listed as inputs too."""
    tensors = {"x": ["batch", 4], "w": [4, 2], "factor": []}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Mul", ["product", "factor"], ["y"]),
        ],
        "defaults",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in tensors.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [4, 2], range(8)),
            helper.make_tensor("factor", TensorProto.FLOAT, [], [2.0]),
        ],
    )
    opset = [helper.make_opsetid("", 9)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=ir_version)
    return bytes(model.SerializeToString())


def typed_model(kind: onnx.TypeProto) -> bytes:
    """The identity of one value of any type."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "identity",
        [helper.make_value_info("x", kind)],
        [helper.make_value_info("y", kind)],
    )
    opset = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString())


def write_model(path: Path, content: bytes | None = None) -> Path:
    """Write a model's file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(scale_model() if content is None else content)
    return path


def zip_map_model(classes: list[str] | list[int]) -> bytes:
    """Scores as skl2onnx ends its classifiers: a list of maps, one for each row of `x`."""
    kind = "strings" if isinstance(classes[0], str) else "int64s"
    labels: dict[str, Any] = {f"classlabels_{kind}": classes}
    node = helper.make_node("ZipMap", ["x"], ["scores"], domain="ai.onnx.ml", **labels)
    key = TensorProto.STRING if kind == "strings" else TensorProto.INT64
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, scores))
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(classes)])],
        [helper.make_value_info("scores", maps)],
    )
    opsets = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    data: bytes = model.SerializeToString()
    return data
