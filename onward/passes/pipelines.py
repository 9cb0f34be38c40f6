from __future__ import annotations

from onward.graph.shapes import infer_shapes
from onward.passes.normalize import (
    fill_default_attributes,
    free_old_initializers,
    inline_functions,
    lift_constants,
    name_values,
    resolve_cast_like,
    sort_nodes,
    spell_domains,
)
from onward.passes.runner import Pipeline
from onward.passes.upgrade import upgrade_opset

PREPARE = Pipeline(
    "prepare",
    (
        spell_domains,
        sort_nodes,
        free_old_initializers,
        inline_functions,
        name_values,
        lift_constants,
        upgrade_opset,
        fill_default_attributes,
        infer_shapes,
        resolve_cast_like,
    ),
)
