"""Show which operators each engine runs as int8 kernels when they stand between Q and DQ.

    python -m conformance.int8_fusions [--save docs/int8-fusions.md]

For each operator a model DequantizeLinear -> operator -> QuantizeLinear is built, loaded, and the
graph that the engine made of it is read back: an operator is fused if it computes on integers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from onward.graph.builder import OpBuilder
from onward.graph.files import save

Build = Callable[[OpBuilder, ir.Value], ir.Value]

_SIZE = (1, 8, 16, 16)
_MULTIPLYING = ("Convolution", "FullyConnected", "MatMul")  # OpenVINO's layers


def _weight(op: OpBuilder, shape: tuple[int, ...], axis: int, *, zero: bool = True) -> ir.Value:
    """A signed 8-bit weight behind DequantizeLinear, with a scale for each channel."""
    rounded = np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8)
    count = shape[axis]
    given = [op.constant(rounded), op.constant(np.full(count, 0.01, np.float32))]
    given += [op.constant(np.zeros(count, np.int8))] if zero else []
    return op.DequantizeLinear(*given, axis=axis)


def _bias(op: OpBuilder, count: int) -> ir.Value:
    rounded = op.constant(np.ones(count, np.int32))
    return op.DequantizeLinear(rounded, op.constant(np.full(count, 2e-4, np.float32)), axis=0)


def _quantized(op: OpBuilder, y: ir.Value, scale: float = 0.02, kind: Any = np.uint8) -> ir.Value:
    zero = op.constant(np.array(128 if kind is np.uint8 else 0, kind))
    return op.QuantizeLinear(y, op.constant(np.float32(scale)), zero)


def _dequantized(op: OpBuilder, y: ir.Value, scale: float = 0.02, kind: Any = np.uint8) -> ir.Value:
    zero = op.constant(np.array(128 if kind is np.uint8 else 0, kind))
    return op.DequantizeLinear(y, op.constant(np.float32(scale)), zero)


def _flat(op: OpBuilder, x: ir.Value) -> ir.Value:
    return _dequantized(op, _quantized(op, op.Reshape(x, [-1, 16])))


def _again(op: OpBuilder, x: ir.Value) -> ir.Value:
    """A second operand."""
    return _dequantized(op, _quantized(op, op.input("x2", "float32", _SIZE), 0.03), 0.03)


def _ones(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


OPERATORS: dict[str, Build] = {
    "Conv": lambda op, x: op.Conv(x, _weight(op, (8, 8, 3, 3), 0), _bias(op, 8)),
    "Conv, depthwise": lambda op, x: op.Conv(x, _weight(op, (8, 1, 3, 3), 0), group=8),
    "ConvTranspose": lambda op, x: op.ConvTranspose(x, _weight(op, (8, 8, 3, 3), 1)),
    "MatMul": lambda op, x: op.MatMul(x, _weight(op, (16, 16), 1)),
    "Gemm": lambda op, x: op.Gemm(_flat(op, x), _weight(op, (16, 16), 1), _bias(op, 16)),
    "Gemm, weight without zero point": lambda op, x: op.Gemm(
        _flat(op, x), _weight(op, (16, 16), 1, zero=False), _bias(op, 16)
    ),
    "Add": lambda op, x: op.Add(x, _again(op, x)),
    "Sub": lambda op, x: op.Sub(x, _again(op, x)),
    "Mul": lambda op, x: op.Mul(x, _again(op, x)),
    "Div": lambda op, x: op.Div(x, _again(op, x)),
    "Concat": lambda op, x: op.Concat(x, _again(op, x), axis=1),
    "Relu": lambda op, x: op.Relu(x),
    "Clip": lambda op, x: op.Clip(x, 0.0, 1.0),
    "LeakyRelu": lambda op, x: op.LeakyRelu(x),
    "PRelu": lambda op, x: op.PRelu(x, op.constant(np.float32(0.1))),
    "Sigmoid": lambda op, x: op.Sigmoid(x),
    "Tanh": lambda op, x: op.Tanh(x),
    "Gelu": lambda op, x: op.Gelu(x),
    "HardSigmoid": lambda op, x: op.HardSigmoid(x),
    "HardSwish": lambda op, x: op.HardSwish(x),
    "Softmax": lambda op, x: op.Softmax(x, axis=-1),
    "AveragePool": lambda op, x: op.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2]),
    "GlobalAveragePool": lambda op, x: op.GlobalAveragePool(x),
    "MaxPool": lambda op, x: op.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2]),
    "ReduceMean": lambda op, x: op.ReduceMean(x, [2, 3]),
    "Reshape": lambda op, x: op.Reshape(x, [1, 8, 256]),
    "Flatten": lambda op, x: op.Flatten(x),
    "Transpose": lambda op, x: op.Transpose(x, perm=[0, 2, 3, 1]),
    "Squeeze": lambda op, x: op.Squeeze(x, [0]),
    "Unsqueeze": lambda op, x: op.Unsqueeze(x, [0]),
    "Slice": lambda op, x: op.Slice(x, [0], [4], [1]),
    "Gather": lambda op, x: op.Gather(x, op.constant(np.array([0, 2])), axis=1),
    "Split": lambda op, x: op.Split(x, axis=1, num_outputs=2, outputs=2)[0],
    "Pad": lambda op, x: op.Pad(x, [0, 0, 1, 1, 0, 0, 1, 1]),
    "Resize, nearest": lambda op, x: op.Resize(
        x, None, op.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest"
    ),
    "DepthToSpace": lambda op, x: op.DepthToSpace(x, blocksize=2),
    "LayerNormalization": lambda op, x: op.LayerNormalization(x, op.constant(_ones(16))),
    "InstanceNormalization": lambda op, x: op.InstanceNormalization(
        x, op.constant(_ones(8)), op.constant(_ones(8))
    ),
}


def build(name: str) -> ir.Model:
    """A model with an operator between DequantizeLinear and QuantizeLinear."""
    op = OpBuilder(21)
    x = _dequantized(op, _quantized(op, op.input("x", "float32", _SIZE)))
    y = OPERATORS[name](op, x)
    return op.model(y=_dequantized(op, _quantized(op, y)))


def kernels_of_onnxruntime(name: str) -> list[str]:
    """The operators that stock onnxruntime runs in place of the model, Q and DQ left out."""
    with tempfile.TemporaryDirectory() as folder:
        model, optimized = Path(folder) / "model.onnx", Path(folder) / "optimized.onnx"
        save(build(name), model)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath, options.log_severity_level = str(optimized), 4
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        nodes = ir.load(optimized).graph
        return [each for each in _kernels(nodes) if each not in ("QuantizeLinear",)]


def _kernels(graph: ir.Graph) -> list[str]:
    """The operators of a graph in order; those that read floats are marked."""
    found = []
    for node in graph:
        if node.op_type == "DequantizeLinear":
            continue
        given = node.inputs[0]
        is_float = given is not None and given.dtype == ir.DataType.FLOAT
        behind = None if given is None else given.producer()
        is_float |= behind is not None and behind.op_type == "DequantizeLinear"
        is_float &= not node.op_type.startswith("QLinear")  # its first input may be a scale
        found.append(f"{node.op_type} on floats" if is_float else node.op_type)
    return found


def is_fused_by_onnxruntime(name: str) -> tuple[bool, str]:
    """Whether an operator computes on integers, and what it became."""
    kernels = [each for each in kernels_of_onnxruntime(name) if "QuantizeLinear" not in each]
    left = [each for each in kernels if each.endswith("on floats")]
    left = [each for each in left if each.split()[0] not in ("Transpose", "Reshape")]
    own = [each for each in kernels if each not in ("Transpose", "Reshape")]
    return not left, ", ".join(own or kernels) or "removed"


def is_fused_by_openvino(name: str) -> tuple[bool, str] | None:
    """The same of OpenVINO; None if it is not installed."""
    try:
        import openvino
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save(build(name), path)
        try:
            compiled = openvino.Core().compile_model(str(path), "CPU")
        except RuntimeError:
            return False, "not loaded"
        layers = []
        for each in compiled.get_runtime_model().get_ops():
            details = each.get_rt_info()
            layer, kind = (
                str(details[key].astype(str)) for key in ("layerType", "runtimePrecision")
            )
            if layer not in ("Input", "Output", "Const", "FakeQuantize", "Reorder", "Subgraph"):
                layers.append((layer, kind))
    text = ", ".join(f"{layer} {kind}" for layer, kind in layers) or "float code"
    main = [pair for pair in layers if pair[0] in _MULTIPLYING] or layers
    return bool(main) and all(kind in ("u8", "i8") for _, kind in main), text


def table() -> str:
    """What each engine makes of each operator, as Markdown."""
    lines = [
        "| operator | onnxruntime | it becomes | OpenVINO | it becomes |",
        "|---|---|---|---|---|",
    ]
    for name in OPERATORS:
        ours = is_fused_by_onnxruntime(name)
        theirs = is_fused_by_openvino(name) or (False, "not installed")
        cells = [name, _word(ours[0]), ours[1], _word(theirs[0]), theirs[1]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _word(fused: bool) -> str:
    return "int8" if fused else "float"


def main() -> None:
    parser = argparse.ArgumentParser(description="Show which operators engines run as int8.")
    parser.add_argument("--save", type=Path, help="the file to write the table to")
    given = parser.parse_args()
    text = table()
    if given.save:
        given.save.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
