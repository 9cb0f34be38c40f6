"""Every pass preserves the outputs, names, types and metadata of random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings

from onward.graph.shapes.infer import infer_shapes
from onward.passes.deduplicate import share_expressions, share_initializers
from onward.passes.drop_unused import drop_unused
from onward.passes.fold import fold_constants
from onward.passes.pipelines import (
    PREPARE,
    Level,
    fuse,
    inference,
    simplify,
    simplify_gradients,
)
from onward.passes.transposes import sink_transposes
from onward.providers.ort.rewrites.faster_forms import share_exponentials, sum_rows_by_product
from tests.passes.random_models import Drawn, models
from tests.passes.running import assert_same, run_reference

PASSES = [
    simplify,
    fold_constants,
    share_initializers,
    share_expressions,
    drop_unused,
    infer_shapes,
    fuse,
    sink_transposes,
    simplify_gradients,
    sum_rows_by_product,
    share_exponentials,
]


def promises(model: ir.Model) -> list[Any]:
    """What callers rely on: names, types and shapes of inputs and outputs, and the metadata."""
    values = [*model.graph.inputs, *model.graph.outputs]
    return [
        [(value.name, value.type, value.is_initializer()) for value in values],
        [str(value.shape) for value in model.graph.inputs],
        dict(model.metadata_props),
    ]


@pytest.mark.sampled()
@pytest.mark.parametrize("level", list(Level)[::-1])
@settings(max_examples=60)
@given(drawn=models())
def test_every_level_preserves_outputs(level: Level, drawn: Drawn) -> None:
    wanted = run_reference(drawn.model, drawn.feeds)
    model = PREPARE(ir.from_proto(drawn.model))
    before = promises(model)
    model = inference(level)(model)
    assert promises(model) == before
    assert_same(wanted, run_reference(model, drawn.feeds), rtol=1e-3)


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.__name__)
@settings(max_examples=40)
@given(drawn=models())
def test_every_pass_preserves_outputs(each: Callable[[ir.Model], ir.Model], drawn: Drawn) -> None:
    wanted = run_reference(drawn.model, drawn.feeds)
    model = PREPARE(ir.from_proto(drawn.model))
    before = promises(model)
    model = each(model)
    assert promises(model) == before
    assert_same(wanted, run_reference(model, drawn.feeds), rtol=1e-3)


@settings(max_examples=40)
@given(drawn=models())
def test_overridable_initializers_are_never_folded(drawn: Drawn) -> None:
    feeds = dict(drawn.feeds)
    model = ir.from_proto(drawn.model)
    for value in model.graph.inputs:
        if value.const_value is not None and value.name is not None:
            default = value.const_value.numpy()
            feeds[value.name] = ~default if default.dtype == bool else default * 2
            if default.dtype == np.int64:
                feeds[value.name] = default
    wanted = run_reference(drawn.model, feeds)
    assert_same(wanted, run_reference(inference(99)(PREPARE(model)), feeds), rtol=1e-3)
