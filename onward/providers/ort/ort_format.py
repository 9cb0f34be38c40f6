"""A model in onnxruntime's own file format, which its minimal builds load."""

from __future__ import annotations

import os
from collections.abc import Sequence

from onward.providers.options import GraphOptimizationLevel, SessionOptions
from onward.providers.ort import session


def write_ort_format(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    libraries: Sequence[str | os.PathLike[str]] = (),
) -> None:
    """Write the model of one file as another, optimised for no machine in particular."""
    options = SessionOptions(
        graph_optimization_level=GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        optimized_model_filepath=os.fspath(target),
        config_entries={"session.save_model_format": "ORT"},
        custom_op_libraries=[os.fspath(library) for library in libraries],
        log_severity_level=3,
    )
    session.create(os.fspath(model), options, [("CPUExecutionProvider", {})])
