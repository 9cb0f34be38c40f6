"""The largest magnitude of each value, measured on calibration data: float16 ends at 65504.

The reductions are nodes of the graph, so that no value leaves the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onward.compress.progress_steps import Progress
from onward.graph.graph_ops import extend
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.compress.calibration import Calibration


def measure_ranges(
    model: ir.Model, calibration: Calibration, progress: Progress | None = None
) -> dict[str, float]:
    """The largest magnitude of each float32 value of the main graph, by its name.

    NaN counts as infinite; an infinite element, such as a mask's, does not count.
    """
    measured = model.clone()
    op = extend(measured)
    limit = float(np.finfo(np.float32).max)
    names = []
    for node in list(measured.graph):
        for value in node.outputs:
            if value.dtype == ir.DataType.FLOAT and value.name:
                finite = op.Where(op.IsInf(value), np.float32(0), value)
                largest = op.ReduceMax(op.Abs(finite), keepdims=0)
                names.append((str(value.name), largest))
    outputs = measured.graph.outputs
    outputs.clear()
    outputs.extend(largest for _, largest in names)
    session = InferenceSession(measured, SessionOptions(log_severity_level=4), ["cpu"])
    ranges = dict.fromkeys((name for name, _ in names), 0.0)
    for count, feeds in enumerate(calibration.batches()):
        if progress is not None:
            progress("measuring ranges", count, None)
        for (name, _), largest in zip(names, session.run(None, feeds), strict=True):
            found = float(largest) if np.size(largest) else 0.0
            ranges[name] = max(ranges[name], limit if np.isnan(found) else found)
    return ranges
