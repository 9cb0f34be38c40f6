"""Build a small graph, run a pass, check that outputs stay, and list the operators left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.passes.pipelines import PREPARE, inference
from tests.passes.running import assert_same, run_reference

Pass = Callable[[ir.Model], ir.Model]
Build = Callable[..., Any]  # (op, *inputs) -> a value, or several
_SYMBOL = 3  # the size that feeds give to a symbolic dimension


def built(
    build: Build, *shapes: Sequence[int | str | None], dtype: Any = "float32", opset: int = 23
) -> ir.Model:
    """A model with an input of each shape and the outputs that `build` returns."""
    op = OpBuilder(opset)
    inputs = [op.input(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    made = build(op, *inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    return op.model(**{f"y{i}": value for i, value in enumerate(outputs)})


def feeds_for(model: ir.Model) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    feeds = {}
    for value in model.graph.inputs:
        assert value.shape is not None and value.dtype is not None and value.name is not None
        if value.is_initializer():
            continue
        shape = [dim if isinstance(dim, int) else _SYMBOL for dim in value.shape]
        numbers = rng.standard_normal(shape)
        array = numbers > 0 if value.dtype == ir.DataType.BOOL else numbers * 2
        feeds[value.name] = np.asarray(array).astype(value.dtype.numpy())
    return feeds


def left_after(
    model: ir.Model,
    each: Pass | int = 2,
    rtol: float = 1e-4,
    run: Callable[[Any, Any], list[Any]] = run_reference,
) -> list[str]:
    """The operators that a pass (or a level) leaves; the results must stay the same."""
    feeds = feeds_for(model)
    wanted = run(ir.to_proto(model), feeds)
    prepared = PREPARE(model.clone())
    optimized = (inference(each) if isinstance(each, int) else each)(prepared)
    assert [v.name for v in optimized.graph.outputs] == [v.name for v in model.graph.outputs]
    assert_same(wanted, run(optimized, feeds), rtol)
    return sorted(node.op_type for node in optimized.graph.all_nodes())
