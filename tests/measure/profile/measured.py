"""Measurements made by hand, for the tests of what is made of them."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onward.graph.costs.flops import Tensor
from onward.measure.profile.record_costs import Graphs
from onward.measure.profile.roofline import Ceilings
from onward.measure.profile.timed_runs import Measurement, Timing
from onward.measure.profile.trace import Record, Trace, TracedRun

CPU = "CPUExecutionProvider"
# 1 GFLOP/s, 1 GB/s, a microsecond to dispatch a node
ROUND = {CPU: Ceilings({"float32": 1e9}, 1e9, 1e-6)}


def record(
    name: str, operator: str, duration: float, shape: tuple[int, ...], **more: Any
) -> Record:
    """One execution of a node with one input and one output of the same shape."""
    tensor = Tensor(ir.DataType.FLOAT, shape)
    given = {"start": 0.0, "thread": 1, "iteration": 0, "inputs": (tensor,), "outputs": (tensor,)}
    return Record(name, operator, CPU, duration=duration, **{**given, **more})


def measurement(
    records: list[Record], latency: float, *, executing: float | None = None
) -> Measurement:
    """One run of these records, as long without profiling as with it."""
    executing = latency if executing is None else executing
    timing = Timing(0.1, 0.2, 0, [0.0], [latency], [(latency / 2, 1 << 20)])
    trace = Trace(records, [TracedRun(0.0, latency, executing)])
    return Measurement(timing, trace, [latency], Graphs([], {}), {}, [CPU])
