"""Cases of rules/conv.py and rules/deform.py."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from tests.gradients.case import Case, between, normal


def _conv(note: str, x: Any, w: Any, b: Any = None, *, operator: str = "Conv", **rest: Any) -> Case:
    options = {name: rest.pop(name) for name in ("fixed", "ort") if name in rest}
    feeds = {"x": x, "w": w} if b is None else {"x": x, "w": w, "b": b}

    def build(op: Any, x: Any, w: Any, b: Any = None) -> Any:
        return getattr(op, operator)(x, w, b, **rest)

    return Case(operator, build, feeds, note, **options)


def _transposed(note: str, x: Any, w: Any, b: Any = None, **rest: Any) -> Case:
    return _conv(note, x, w, b, operator="ConvTranspose", **rest)


_W = normal(3, 2, 3, 3)
_KNOWN = ("w",)  # SAME and output_shape need the kernel's size

CASES = [
    _conv("bias", normal(2, 2, 5, 5), _W, normal(3)),
    _conv("one axis", normal(2, 2, 6), normal(3, 2, 3), normal(3), pads=[1, 0]),
    _conv("three axes", normal(1, 2, 4, 3, 4), normal(2, 2, 2, 2, 3), strides=[2, 1, 1]),
    _conv("pads", normal(2, 2, 5, 4), _W, pads=[1, 0, 2, 1]),
    _conv("stride leaves some out", normal(1, 2, 6, 8), _W, strides=[2, 3]),
    _conv("strides and pads", normal(2, 2, 8, 8), _W, normal(3), strides=[2, 2], pads=[1, 1, 1, 1]),
    _conv("dilations", normal(1, 2, 7, 8), _W, dilations=[2, 3], pads=[0, 1, 0, 2]),
    _conv(
        "all of them", normal(1, 2, 9, 8), _W, dilations=[2, 1], strides=[2, 3], pads=[2, 1, 0, 1]
    ),
    _conv("groups", normal(2, 4, 5, 5), normal(6, 2, 3, 3), normal(6), group=2, pads=[1] * 4),
    _conv("depthwise", normal(2, 3, 5, 5), normal(3, 1, 3, 3), normal(3), group=3, strides=[2, 2]),
    _conv("depthwise, two for each", normal(1, 3, 5, 5), normal(6, 1, 3, 3), group=3),
    _conv("1 x 1", normal(2, 3, 4, 4), normal(5, 3, 1, 1), normal(5)),
    _conv("1 x 1 with a stride", normal(2, 3, 4, 5), normal(5, 3, 1, 1), strides=[2, 2]),
    _conv(
        "SAME_UPPER", normal(1, 2, 5, 6), normal(3, 2, 2, 3), auto_pad="SAME_UPPER", fixed=_KNOWN
    ),
    _conv(
        "SAME_LOWER with strides",
        normal(1, 2, 6, 7),
        normal(3, 2, 4, 3),
        auto_pad="SAME_LOWER",
        strides=[2, 3],
        fixed=_KNOWN,
    ),
    _conv("VALID", normal(1, 2, 6, 7), _W, auto_pad="VALID", strides=[2, 2]),
    _conv("even kernel", normal(1, 1, 6, 5), normal(2, 1, 2, 4), pads=[1, 2, 0, 1], strides=[1, 2]),
    Case(
        "Conv",
        lambda op, x, w: op.Conv(x, w, pads=[1, 1, 1, 1], strides=[2, 2]),
        {"x": normal(2, 2, 6, 6), "w": _W},
        "only the batch unknown",
        fixed=("w",),
    ),
    _transposed("bias", normal(2, 3, 4, 4), _W, normal(2)),
    _transposed("one axis", normal(2, 3, 5), normal(3, 2, 3), strides=[2], pads=[1, 0]),
    _transposed("three axes", normal(1, 2, 3, 2, 3), normal(2, 2, 2, 2, 3), strides=[1, 2, 1]),
    _transposed("strides", normal(2, 3, 3, 4), _W, normal(2), strides=[2, 3]),
    _transposed("output padding", normal(1, 3, 3, 3), _W, strides=[2, 3], output_padding=[1, 2]),
    _transposed(
        "pads", normal(1, 3, 4, 4), _W, strides=[2, 2], pads=[1, 2, 0, 1], output_padding=[1, 1]
    ),
    _transposed("dilations", normal(1, 3, 4, 4), _W, dilations=[2, 3], pads=[1, 1, 2, 0]),
    _transposed(
        "groups", normal(2, 4, 3, 3), normal(4, 3, 3, 3), normal(6), group=2, strides=[2, 2]
    ),
    _transposed(
        "output padding over a stride",
        normal(1, 3, 3, 3),
        _W,
        dilations=[3, 3],
        strides=[2, 1],
        output_padding=[2, 2],
        ort=False,  # it wants less than the stride
    ),
    _transposed(
        "output shape", normal(1, 3, 3, 3), _W, strides=[3, 2], output_shape=[10, 8], fixed=_KNOWN
    ),
    _transposed(
        "smaller output shape",
        normal(1, 3, 4, 3),
        _W,
        strides=[2, 2],
        output_shape=[8, 5],
        fixed=_KNOWN,
    ),
    _transposed(
        "SAME_UPPER", normal(1, 3, 4, 3), _W, strides=[2, 2], auto_pad="SAME_UPPER", fixed=_KNOWN
    ),
    _transposed(
        "SAME_LOWER", normal(1, 3, 4, 3), _W, strides=[2, 1], auto_pad="SAME_LOWER", fixed=_KNOWN
    ),
    _transposed("VALID", normal(1, 3, 4, 3), _W, strides=[2, 1], auto_pad="VALID"),
]


def _deform(note: str, feeds: dict[str, Any], **attributes: Any) -> Case:
    return Case(
        "DeformConv",
        lambda op, x, w, offset, b=None, mask=None: op.DeformConv(
            x, w, offset, b, mask, **attributes
        ),
        feeds,
        note,
        fixed=("w",),
        tolerance=1e-5,  # offsets move across the edges between pixels
    )


_OFFSET = between(0.1, 0.9, 1, 8, 3, 3)

CASES += [
    _deform("", {"x": normal(1, 2, 4, 4), "w": normal(3, 2, 2, 2), "offset": _OFFSET}),
    _deform(
        "bias, mask and pads",
        {
            "x": normal(2, 2, 4, 4),
            "w": normal(3, 2, 2, 2),
            "offset": between(0.1, 0.9, 2, 8, 3, 3),
            "b": normal(3),
            "mask": normal(2, 4, 3, 3),
        },
        pads=[1, 1, 1, 1],
        strides=[2, 2],
    ),
    _deform(
        "groups and dilations",
        {
            "x": normal(1, 4, 6, 5),
            "w": normal(4, 2, 2, 2),
            "offset": between(-0.9, -0.1, 1, 16, 4, 3),
            "mask": normal(1, 8, 4, 3),
        },
        group=2,
        offset_group=2,
        dilations=[2, 2],
    ),
]


def _causal(note: str, feeds: dict[str, Any], **attributes: Any) -> Case:
    def build(op: Any, x: Any, w: Any, b: Any = None, past: Any = None) -> Any:
        node = ir.node("CausalConvWithState", [x, w, b, past], attributes, num_outputs=2)
        op.graph.append(node)  # as it is: ONNX has it for float32 only, and this is float64
        for y, shape in zip(node.outputs, (x.shape, (*x.shape[:2], w.shape[2] - 1))):
            y.name, y.type, y.shape = op.name("y"), x.type, ir.Shape(shape)
        return tuple(node.outputs)

    # of opset 27, which onnxruntime does not load
    return Case("CausalConvWithState", build, feeds, note, ort=False, fixed=("w",))


_CAUSAL = {"x": normal(2, 3, 5), "w": normal(3, 1, 4)}

CASES += [
    _causal("", _CAUSAL),
    _causal(
        "bias, past and silu",
        {**_CAUSAL, "b": normal(3), "past": normal(2, 3, 3)},
        activation="silu",
    ),
    _causal("one tap", {"x": normal(2, 3, 5), "w": normal(3, 1, 1)}),
    _causal(
        "shorter than the past",
        {"x": normal(2, 3, 2), "w": normal(3, 1, 5), "past": normal(2, 3, 4)},
    ),
]
