"""Estimate the memory of runs, only from the graph: values are freed after their last use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from onward.errors import OptionError
from onward.graph.files import Source
from onward.graph.shapes.infer import fix_dimensions, with_input_shapes
from onward.measure.memory.budget import VIEWS, MemoryEstimate, estimate_memory
from onward.passes.pipelines import PREPARE, inference
from onward.providers.model_sources import open_model
from onward.providers.options import SessionOptions, has_own_operators

Shapes = Mapping[str, Sequence[int]]
Weights = str | os.PathLike[str] | None


def estimate_source(
    source: Source, shapes: Shapes, options: SessionOptions, weights: Weights
) -> MemoryEstimate:
    """Weights and lifetimes of a model after Onward's passes, with inputs of these shapes."""
    model = open_model(source, weights, options.limits, any_domain=has_own_operators(options))
    fix_dimensions(model, options.free_dimensions, options.free_dimension_denotations)
    return estimate_memory(
        inference(options.graph_optimization_level)(PREPARE(model)), shapes, VIEWS
    )


def output_shapes(
    source: Source, shapes: Shapes, options: SessionOptions, weights: Weights
) -> dict[str, tuple[int, ...]]:
    """The shape of each output; an OptionError if it depends on the data."""
    model = open_model(source, weights, options.limits, any_domain=has_own_operators(options))
    fix_dimensions(model, options.free_dimensions, options.free_dimension_denotations)
    model = with_input_shapes(PREPARE(model), shapes)
    found = {}
    for value in model.graph.outputs:
        if value.shape is None or not value.shape.is_static():
            raise OptionError(
                f"the shape of output {value.name!r} is known only after a run\n"
                "run once, and allocate an array like its result"
            )
        found[str(value.name)] = tuple(value.shape.numpy())
    return found
