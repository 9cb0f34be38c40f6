"""Precision: where a value's type is too small for the sum that makes it."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.operators import PRODUCTS
from onward.passes.rewrite import Ops, Replacement, Rules, rewrite

HALF = ir.DataType.FLOAT16
SUMS = (PRODUCTS - {"DeformConv"}) | {"Softmax", "Attention"}


def widen_sums(model: ir.Model, operators: Collection[str] = SUMS) -> ir.Model:
    """Sums of float16 products in float32: y = f(a, b)  ->  y = half(f(float(a), float(b))).

    For engines that would add them up in float16, where 2048 + 1 is 2048. Types must be inferred.
    """
    rules = Rules()
    rules(*[name for name in SUMS if name in operators])(_widen)
    rewrite(model, rules)
    return model


def _widen(op: Ops, node: ir.Node) -> Replacement:
    if not _halves(node):
        return None
    inputs = [op.Cast(v, to=ir.DataType.FLOAT) if _is_half(v) else v for v in node.inputs]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    wide = op.many(node.op_type, len(node.outputs), *inputs, **attributes)
    return [op.Cast(new, to=HALF) if _is_half(old) else new for old, new in zip(node.outputs, wide)]


def _halves(node: ir.Node) -> bool:
    return node.domain == "" and any(map(_is_half, node.inputs))


def _is_half(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == HALF
