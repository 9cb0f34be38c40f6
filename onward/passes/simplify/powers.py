"""Rules that replace powers by products: engines compute powers by logarithms, much slower."""

from __future__ import annotations

import onnx_ir as ir

from onward.passes.rewrite import Ops, Replacement, Rules
from onward.passes.value_facts import fits_within, is_float, scalar

rule = Rules()


@rule("Pow")
def small_power(op: Ops, node: ir.Node) -> Replacement:
    """x^2 = x x, x^3 = x x x."""
    x, exponent = node.inputs
    if x is None or not is_float(x) or not fits_within(exponent, x):
        return None
    number = scalar(exponent)
    if number == 2:
        return op.Mul(x, x)
    return op.Mul(op.Mul(x, x), x) if number == 3 else None
