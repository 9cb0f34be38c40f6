"""Int8 forms of a model for a target: with and without convolutions, within a budget of quality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.quality import Judge
from onward.compress.quantization.int8.quantizer import Int8Quantizer
from onward.compress.quantization.plan import Plan
from onward.graph.node_args import describe

_PRODUCTS = ("MatMul", "Gemm", "Gather", "LSTM")


def int8_candidates(
    model: ir.Model,
    data: Any,
    *,
    drop: float,
    sizes: Mapping[str, int] | None = None,
    batch: int | None = None,
) -> dict[str, ir.Model]:
    """Int8 models whose outputs lose no more than `drop` of their similarity, by name.

    Kernels differ between targets: int8 convolutions are slower than float in wasm, int8 matrix
    products faster. Without data, ranges are measured in each run.
    """
    inputs = [describe(value) for value in model.graph.inputs if not value.is_initializer()]
    calibration = Calibration(data, inputs, sizes=sizes, batch=batch, limit=32)
    quantizer = Int8Quantizer(model.clone(), calibration)
    operators = {str(node.name): node.op_type for node in quantizer.model.graph}
    plans: dict[str, Plan] = {"int8": quantizer.plan}
    products = {n: f for n, f in quantizer.plan.items() if operators.get(n) in _PRODUCTS}
    if len(products) < len(quantizer.plan):
        plans["int8 matrix products"] = products
    if not calibration.is_random:
        other = Int8Quantizer(model.clone(), calibration, dynamic=True)
        plans["int8 dynamic"] = other.plan
    judge = Judge(model, calibration)
    found = {}
    for name, plan in plans.items():
        if not plan:
            continue
        made = (other if name == "int8 dynamic" else quantizer).write(plan)
        if judge.is_within(judge.rate(made), drop):
            found[name] = made
    return found
