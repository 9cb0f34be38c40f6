"""Apply a user's rewrites to a captured graph, before its gradient is derived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from onward.errors import OptionError
from onward.pytorch.captured_model import Capture

Rewrite = Callable[[ir.Model], ir.Model | None]


def rewrite_capture(found: Capture, rewrites: Sequence[Rewrite]) -> Capture:
    """The capture with its model rewritten; a rewrite changes it in place or returns another."""
    if not rewrites:
        return found
    model = found.model
    names = _interface(model)
    for rewrite in rewrites:
        model = rewrite(model) or model
        if _interface(model) != names:
            raise OptionError(
                f"the rewrite {getattr(rewrite, '__name__', rewrite)} changed the names of the "
                "model's inputs or outputs\nonly the nodes between them may change"
            )
    return replace(found, held=model)


def _interface(model: ir.Model) -> list[list[str | None]]:
    graph = model.graph
    return [[value.name for value in values] for values in (graph.inputs, graph.outputs)]
