"""Cases of rules/contrib_gelu_norm.py, and of FusedMatMul in rules/contrib_fused.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tests.gradients.case import Case, integers, normal

MICROSOFT = "com.microsoft"


def _contrib(
    operator: str, note: str, feeds: dict[str, Any], *, domain: str = MICROSOFT, **rest: Any
) -> Case:
    """The output looks like the first input: ONNX knows no more about these operators."""
    options = {name: rest.pop(name) for name in ("ort",) if name in rest}
    shape = rest.pop("shape", None)

    def build(op: Any, **inputs: Any) -> Any:
        given = [inputs.get(name) for name in rest.get("order", inputs)]
        attributes = {name: value for name, value in rest.items() if name != "order"}
        node = ir.node(operator, given, attributes, domain=domain)
        op.graph.append(node)
        op.graph.opset_imports.setdefault(domain, 1)
        (y,) = node.outputs
        y.name, y.type = op.name(operator), inputs["x"].type
        y.shape = inputs["x"].shape if shape is None else ir.Shape(shape)
        return y

    name = f"{domain}::{operator}" if domain else operator
    return Case(name, build, feeds, note, **options)


_X, _SKIP, _GAMMA = normal(2, 3, 4), normal(2, 3, 4, seed=1), normal(4)
_SUM = {"x": _X, "skip": _SKIP, "gamma": _GAMMA}


def _fused(note: str, a: Any, b: Any, shape: tuple[int, ...], **rest: Any) -> Case:
    return _contrib("FusedMatMul", note, {"x": a, "w": b}, shape=shape, **rest)


_IDS = integers(0, 5, 2, 3).astype(np.int32)
_EMBED = {"words": normal(5, 4), "positions": normal(6, 4), "kinds": normal(2, 4)}


def _embedded(note: str, *, segments: bool, positions: bool) -> Case:
    feeds: dict[str, Any] = {"ids": _IDS, **_EMBED, "gamma": _GAMMA, "beta": normal(4, seed=1)}
    if segments:
        feeds["segments"] = integers(0, 2, 2, 3).astype(np.int32)
    else:
        del feeds["kinds"]
    if positions:
        feeds["places"] = integers(0, 6, 2, 3).astype(np.int32)
    names = ("ids", "segments", "words", "positions", "kinds", "gamma", "beta", "mask", "places")

    def build(op: Any, **inputs: Any) -> Any:
        given = [inputs.get(name) for name in names]
        operator = "EmbedLayerNormalization"
        attributes = {"epsilon": 1e-5}
        node = ir.node(operator, given, attributes, num_outputs=2, domain=MICROSOFT)
        op.graph.append(node)
        op.graph.opset_imports.setdefault(MICROSOFT, 1)
        y, counts = node.outputs
        y.name, y.type, y.shape = op.name("y"), inputs["words"].type, ir.Shape((2, 3, 4))
        counts.name, counts.type = op.name("counts"), ir.TensorType(ir.DataType.INT32)
        return y

    return Case(f"{MICROSOFT}::EmbedLayerNormalization", build, feeds, note)


CASES = [
    _embedded("", segments=True, positions=False),
    _embedded("positions, no segments", segments=False, positions=True),
    _contrib("Gelu", "", {"x": _X}),
    _contrib("BiasGelu", "", {"x": _X, "b": _GAMMA}),
    _contrib("FastGelu", "", {"x": _X}),
    _contrib("FastGelu", "bias", {"x": _X, "b": _GAMMA}),
    _contrib("QuickGelu", "", {"x": _X}),
    _contrib("QuickGelu", "alpha", {"x": _X}, alpha=0.5),
    _contrib(
        "BiasSplitGelu", "", {"x": normal(2, 3, 8), "b": normal(8)}, shape=(2, 3, 4), ort=False
    ),
    _contrib("BiasAdd", "", {"x": _X, "b": _GAMMA, "skip": _SKIP}, ort=False),
    _contrib(
        "BiasSoftmax", "", {"x": _X, "b": normal(1, 3, 4)}, axis=2, is_inner_broadcast=0, ort=False
    ),
    _contrib(
        "BiasSoftmax",
        "two axes",
        {"x": _X, "b": normal(1, 3, 4)},
        axis=1,
        is_inner_broadcast=0,
        ort=False,
    ),
    _contrib("SkipLayerNormalization", "", _SUM, epsilon=1e-5),
    _contrib(
        "SkipLayerNormalization",
        "beta and bias",
        {**_SUM, "beta": normal(4, seed=1), "bias": normal(4, seed=2)},
        epsilon=1e-5,
    ),
    _contrib("SkipSimplifiedLayerNormalization", "", _SUM, epsilon=1e-5),
    _contrib(
        "SkipSimplifiedLayerNormalization",
        "bias",
        {**_SUM, "bias": normal(4, seed=2)},
        epsilon=1e-5,
    ),
    _contrib("SimplifiedLayerNormalization", "", {"x": _X, "scale": _GAMMA}, domain=""),
    _contrib(
        "SimplifiedLayerNormalization", "", {"x": _X, "scale": _GAMMA}, ort=False
    ),  # not there
    _fused("", normal(2, 3), normal(3, 4), (2, 4)),
    _fused(
        "both turned", normal(5, 3, 2), normal(5, 4, 3), (5, 2, 4), transA=1, transB=1, alpha=0.5
    ),
    _fused("batch turned", normal(2, 5, 3), normal(5, 3, 4), (5, 2, 4), transBatchA=1),
    _fused(
        "batch and matrix turned",
        normal(3, 5, 2),
        normal(3, 5, 4),
        (5, 2, 4),
        transBatchA=1,
        transA=1,
        transBatchB=1,
    ),
    _contrib(
        "TransposeMatMul",
        "",
        {"x": normal(2, 3), "w": normal(4, 3)},
        shape=(2, 4),
        transB=1,
    ),
]
