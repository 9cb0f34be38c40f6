"""ORT format: onnxruntime's own file format, which its minimal builds load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onward.providers.options import GraphOptimizationLevel, SessionOptions
from onward.providers.ort import session

if TYPE_CHECKING:
    from onward.graph.files import Source


def is_ort_format(source: Source) -> bool:
    """Whether a model is in ORT format, which only onnxruntime reads."""
    if isinstance(source, bytes):
        return source[4:8] == b"ORTM"
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix == ".ort"


def write_ort_format(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Write a model file in ORT format, optimised for any machine."""
    options = SessionOptions(
        graph_optimization_level=GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        optimized_model_filepath=os.fspath(target),
        config_entries={"session.save_model_format": "ORT"},
        custom_op_libraries=[os.fspath(library) for library in libraries],
        log_severity_level=3,
    )
    session.create(os.fspath(model), options, [("CPUExecutionProvider", {})])
