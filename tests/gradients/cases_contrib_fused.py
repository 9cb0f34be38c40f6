"""Cases of rules/contrib_fused.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, normal

MICROSOFT = "com.microsoft"


def _fused(
    operator: str, note: str, feeds: dict[str, Any], shape: tuple[int, ...], **rest: Any
) -> Case:
    """ONNX knows nothing about these operators: the shape is given."""
    options = {name: rest.pop(name) for name in ("ort", "autograd") if name in rest}
    order = rest.pop("order", tuple(feeds))

    def build(op: Any, **inputs: Any) -> Any:
        given = [inputs.get(name) for name in order]
        node = ir.node(operator, given, rest, domain=MICROSOFT)
        op.graph.append(node)
        op.graph.opset_imports.setdefault(MICROSOFT, 1)
        (y,) = node.outputs
        y.name, y.type, y.shape = op.name(operator), inputs["x"].type, ir.Shape(shape)
        return y

    return Case(f"{MICROSOFT}::{operator}", build, feeds, note, **options)


_CONV = {"x": normal(2, 3, 5, 5), "w": normal(4, 3, 3, 3), "b": normal(4)}
_Z = normal(2, 4, 5, 5)
_PADS = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
_FULL = (2, 4, 5, 5)
_GEMM = {"x": normal(2, 3), "w": normal(3, 4), "c": normal(4)}
_LAST = {
    "x": normal(2, 5, 5, 3),
    "w": normal(4, 3, 3, 3),
    "b": normal(4),
    "z": np.moveaxis(_Z, 1, -1),
}

CASES = [
    *(
        _fused("FusedConv", name, _CONV, _FULL, activation=name, **params, **_PADS)
        for name, params in (
            ("Relu", {}),
            ("Sigmoid", {}),
            ("Tanh", {}),
            ("LeakyRelu", {"activation_params": [0.3]}),
            ("Clip", {"activation_params": [-0.5, 1.5]}),
            ("HardSigmoid", {"activation_params": [0.2, 0.5]}),
        )
    ),
    _fused("FusedConv", "residual", {**_CONV, "z": _Z}, _FULL, activation="Relu", **_PADS),
    _fused(
        "FusedConv",
        "residual, no bias",
        {"x": _CONV["x"], "w": _CONV["w"], "z": _Z},
        _FULL,
        order=("x", "w", "b", "z"),
        activation="Relu",
        **_PADS,
    ),
    _fused("FusedConv", "no activation", _CONV, (2, 4, 3, 3), kernel_shape=[3, 3]),
    _fused(
        "FusedConv",
        "groups and strides",
        {"x": normal(2, 4, 6, 6), "w": normal(4, 2, 3, 3)},
        (2, 4, 2, 2),
        activation="Tanh",
        group=2,
        strides=[2, 2],
        kernel_shape=[3, 3],
    ),
    _fused(
        "NhwcConv", "", {n: _LAST[n] for n in ("x", "w", "b")}, (2, 5, 5, 4), ort=False, **_PADS
    ),
    _fused("NhwcFusedConv", "", _LAST, (2, 5, 5, 4), activation="Relu", ort=False, **_PADS),
    *(
        _fused("FusedGemm", name, _GEMM, (2, 4), activation=name, alpha=0.5, beta=1.5, **params)
        for name, params in (
            ("Relu", {}),
            ("Sigmoid", {}),
            ("Tanh", {}),
            ("LeakyRelu", {"activation_alpha": 0.3}),
            ("HardSigmoid", {"activation_alpha": 0.2, "activation_beta": 0.5}),
        )
    ),
    _fused(
        "FusedGemm",
        "turned",
        {"x": normal(3, 2), "w": normal(4, 3), "c": normal(2, 4)},
        (2, 4),
        activation="Tanh",
        transA=1,
        transB=1,
    ),
    _fused(
        "FusedMatMulActivation",
        "Softmax",
        {"x": normal(2, 3), "w": normal(3, 4)},
        (2, 4),
        activation="Softmax",
        ort=False,
    ),
    _fused(
        "FusedMatMulActivation",
        "LeakyRelu",
        {"x": normal(2, 3), "w": normal(4, 3)},
        (2, 4),
        activation="LeakyRelu",
        activation_alpha=0.3,
        transB=1,
        ort=False,
    ),
    _fused("GemmFastGelu", "", {**_GEMM}, (2, 4), ort=False),
]
