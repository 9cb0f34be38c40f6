"""Int8 forms of a model for a target: with and without convolutions, within a budget of quality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.edge.unsigned_weights import to_unsigned_weights
from onward.compress.quality import Judge
from onward.compress.quantization.int8.quantizer import Int8Quantizer
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
    judge = Judge(model, calibration)
    found: dict[str, ir.Model] = {}
    for name, made in _forms(model, calibration):
        if judge.is_within(judge.rate(made), drop):
            found[name] = made
            found[f"{name}, unsigned weights"] = to_unsigned_weights(made)
    return found


def _forms(model: ir.Model, calibration: Calibration) -> Iterator[tuple[str, ir.Model]]:
    dynamic = Int8Quantizer(model.clone(), calibration, dynamic=True)
    if dynamic.plan:
        yield "int8 dynamic", dynamic.write(dynamic.plan)
    if calibration.is_random:
        return
    static = Int8Quantizer(model.clone(), calibration)
    operators = {str(node.name): node.op_type for node in static.model.graph}
    products = {n: f for n, f in static.plan.items() if operators.get(n) in _PRODUCTS}
    if static.plan:
        yield "int8", static.write(static.plan)
    if products and len(products) < len(static.plan):
        yield "int8 matrix products", static.write(products)
