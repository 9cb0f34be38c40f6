"""Read a model from any source: ONNX files and objects, torch.export programs, other weights."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from onward.graph.files import Source, load
from onward.graph.limits import DEFAULT_LIMITS, ModelLimits
from onward.graph.paths import check_archive
from onward.graph.weights import swap_weights
from onward.lazy import LazyModule

programs = LazyModule("onward.providers.torch.exported_programs")


def open_model(
    source: Source,
    weights: str | os.PathLike[str] | None = None,
    limits: ModelLimits = DEFAULT_LIMITS,
    *,
    any_domain: bool = False,
) -> ir.Model:
    """Read a model, or copy the caller's: the result may be changed."""
    if isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".pt2":
        check_archive(Path(source), limits)
        model: ir.Model = programs.read_program(source)
    else:
        model = load(source, limits, any_domain=any_domain)
        model = model.clone() if isinstance(source, ir.Model) else model
    if weights is not None:
        swap_weights(model, weights)
    return model
