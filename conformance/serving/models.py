"""The models that the clients call, in a folder as Triton lays it out.

identity_{datatype}  x (batch, n) -> y, for each datatype of the protocol
simple               INPUT0, INPUT1 (batch, 16) -> OUTPUT0 their sum, OUTPUT1 their difference
classifier           x (batch, 4) -> scores (batch, 3), with labels
accumulator          INPUT (batch, 1) -> OUTPUT, the sum of its sequence so far
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
LABELS = ["cat", "dog", "eel"]

CLASSIFIER_CONFIG = """
name: "classifier"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
"""

ACCUMULATOR_CONFIG = """
name: "accumulator"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    {
      name: "START"
      control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ]
    }
  ]
  state [
    { input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [ 1 ] }
  ]
}
"""


def write_models(folder: Path) -> None:
    """Write all models below a folder."""
    for name in TYPES:
        _write(folder, f"identity_{name.lower()}", _identity(TYPES[name]))
    _write(folder, "simple", _simple())
    _write(folder, "classifier", _classifier(), CLASSIFIER_CONFIG)
    (folder / "classifier" / "labels.txt").write_text("\n".join(LABELS) + "\n")
    _write(folder, "accumulator", _accumulator(), ACCUMULATOR_CONFIG)


def _write(folder: Path, name: str, graph: onnx.GraphProto, config: str = "") -> None:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path = folder / name / "1"
    path.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path / "model.onnx")
    if config:
        (path.parent / "config.pbtxt").write_text(config.lstrip())


def _value(name: str, type: int, *sizes: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type, ["batch", *sizes])


def _identity(type: int) -> onnx.GraphProto:
    node = helper.make_node("Identity", ["x"], ["y"])
    return helper.make_graph([node], "identity", [_value("x", type, "n")], [_value("y", type, "n")])


def _simple() -> onnx.GraphProto:
    int32 = TensorProto.INT32
    inputs = [_value(f"INPUT{i}", int32, 16) for i in range(2)]
    outputs = [_value(f"OUTPUT{i}", int32, 16) for i in range(2)]
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    return helper.make_graph(nodes, "simple", inputs, outputs)


def _classifier() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["first"]),
        helper.make_node("Softmax", ["first"], ["scores"], axis=1),
    ]
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("start", 0), ("end", 3), ("axis", 1))
    ]
    x, scores = _value("x", TensorProto.FLOAT, 4), _value("scores", TensorProto.FLOAT, 3)
    return helper.make_graph(nodes, "classifier", [x], [scores], constants)


def _accumulator() -> onnx.GraphProto:
    """STATE_OUT = OUTPUT = INPUT + (START ? 0 : STATE_IN)"""
    int32 = TensorProto.INT32
    nodes = [
        helper.make_node("Sub", ["one", "START"], ["goes_on"]),
        helper.make_node("Mul", ["STATE_IN", "goes_on"], ["kept"]),
        helper.make_node("Add", ["INPUT", "kept"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["STATE_OUT"]),
    ]
    inputs = [_value(name, int32, 1) for name in ("INPUT", "START", "STATE_IN")]
    outputs = [_value(name, int32, 1) for name in ("OUTPUT", "STATE_OUT")]
    one = helper.make_tensor("one", int32, [1], [1])
    return helper.make_graph(nodes, "accumulator", inputs, outputs, [one])
