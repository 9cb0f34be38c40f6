"""Cases of rules/contrib_quantized.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, integers, normal, positive

_ROWS, _COLUMNS, _BLOCK = 5, 40, 16  # three blocks, the last of them half full


def _nbits(note: str, bits: int, given: str = "", *, zeros: str = "", ort: bool = True) -> Case:
    feeds: dict[str, Any] = {
        "a": normal(2, 3, _COLUMNS),
        "b": integers(0, 256, _ROWS, 3, _BLOCK * bits // 8).astype(np.uint8),
        "scales": positive(_ROWS * 3),
    }
    if zeros == "bytes":
        feeds["zeros"] = integers(0, 256, _ROWS * -(-3 * bits // 8), seed=1).astype(np.uint8)
    elif zeros == "floats":
        feeds["zeros"] = normal(_ROWS, 3, seed=1)
    if "order" in given:
        feeds["order"] = integers(0, 3, _COLUMNS, seed=2).astype(np.int32)
    if "bias" in given:
        feeds["bias"] = normal(_ROWS, seed=3)

    def build(op: Any, **inputs: Any) -> Any:
        values = [inputs.get(name) for name in ("a", "b", "scales", "zeros", "order", "bias")]
        attributes = {"N": _ROWS, "K": _COLUMNS, "bits": bits, "block_size": _BLOCK}
        node = ir.node("MatMulNBits", values, attributes, domain="com.microsoft")
        op.graph.append(node)
        op.graph.opset_imports.setdefault("com.microsoft", 1)
        (y,) = node.outputs
        y.name, y.type = op.name("y"), inputs["a"].type
        y.shape = ir.Shape([*inputs["a"].shape[:2], _ROWS])
        return y

    return Case("com.microsoft::MatMulNBits", build, feeds, note, ort=ort)


_MICROSOFT = "com.microsoft"
_INPUT, _HIDDEN = 3, 2
_LSTM = ("x", "w", "r", "b", "lens", "h", "c", "p", "ws", "wz", "rs", "rz")


def _lstm(note: str, given: str = "", *, by_gate: bool = False, direction: str = "forward") -> Case:
    """Its inputs are rounded to bytes: onnxruntime's result is another than of floats."""
    sides = 2 if direction == "bidirectional" else 1
    gates = 4 * _HIDDEN
    scale = (sides, gates) if by_gate else (sides,)
    feeds: dict[str, Any] = {
        "x": normal(5, 2, _INPUT),
        "w": integers(-128, 128, sides, _INPUT, gates).astype(np.int8),
        "r": integers(-128, 128, sides, _HIDDEN, gates, seed=1).astype(np.int8),
        "ws": positive(*scale) / 100,
        "wz": np.zeros(scale, np.int8),
        "rs": positive(*scale, seed=1) / 100,
        "rz": np.zeros(scale, np.int8),
    }
    if "b" in given:
        feeds["b"] = normal(sides, 2 * gates)
    if "h" in given:
        feeds |= {"h": normal(sides, 2, _HIDDEN), "c": normal(sides, 2, _HIDDEN, seed=1)}

    def build(op: Any, **inputs: Any) -> Any:
        values = [inputs.get(name) for name in _LSTM]
        attributes = {"hidden_size": _HIDDEN, "direction": direction}
        node = ir.node("DynamicQuantizeLSTM", values, attributes, num_outputs=3, domain=_MICROSOFT)
        op.graph.append(node)
        op.graph.opset_imports.setdefault(_MICROSOFT, 1)
        last = (sides, 2, _HIDDEN)
        for y, sizes in zip(node.outputs, ((5, *last), last, last)):
            y.name, y.type, y.shape = op.name("y"), inputs["x"].type, ir.Shape(sizes)
        return tuple(node.outputs)

    wrt = tuple(name for name in ("x", "b", "h", "c") if name in feeds)
    return Case(f"{_MICROSOFT}::DynamicQuantizeLSTM", build, feeds, note, wrt=wrt, ort=False)


def _product(operator: str, note: str, *, zero: bool = True) -> Case:
    """Rounded on the way in, which gradients go by: a convention, not a limit."""
    feeds = {
        "x": normal(2, 3, 4),
        "b": integers(-100, 100, 4, 5).astype(np.int8),
        "scale": positive(5),
        "zero": integers(-9, 9, 5).astype(np.int8),
        "bias": normal(5),
    }
    if not zero:
        del feeds["zero"]

    def build(op: Any, x: Any, b: Any, scale: Any, bias: Any, zero: Any = None) -> Any:
        kind = x.dtype
        x, scale, bias = (op.Cast(v, to=int(ir.DataType.FLOAT)) for v in (x, scale, bias))
        given = [x, b, scale, zero, bias]
        if operator == "MatMulIntegerToFloat":
            q, step, offset = op.DynamicQuantizeLinear(x, outputs=3)
            given = [q, b, step, scale, offset, zero, bias]
        node = ir.node(operator, given, domain=_MICROSOFT)
        op.graph.append(node)
        op.graph.opset_imports.setdefault(_MICROSOFT, 1)
        (y,) = node.outputs
        y.name, y.type, y.shape = op.name("y"), x.type, ir.Shape((2, 3, 5))
        return op.Cast(y, to=int(kind))

    name = f"{_MICROSOFT}::{operator}"
    wrt = ("x", "bias")
    return Case(name, build, feeds, note, wrt=wrt, differences=False, autograd=False)


CASES = [
    _lstm(""),
    _lstm("a scale for each gate", "bh", by_gate=True),
    _lstm("both ways", "bh", direction="bidirectional"),
    _product("DynamicQuantizeMatMul", ""),
    _product("DynamicQuantizeMatMul", "no zero points", zero=False),
    _product("MatMulIntegerToFloat", ""),
    _nbits("", 4),
    _nbits("bias", 4, "bias"),
    _nbits("zero points", 4, zeros="bytes"),
    _nbits("zero points of floats", 4, zeros="floats"),
    _nbits("eight bits", 8, zeros="bytes"),
    _nbits("two bits", 2),
    _nbits("blocks by column", 4, "order", zeros="bytes"),
]
