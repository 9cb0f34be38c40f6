"""Data of the page's plots over time: the nodes of one run, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.measure.profile.bottlenecks import Analysis, median_run
from onward.measure.profile.timed_runs import Measurement
from onward.measure.profile.trace import Record

_MAX_RECORDS = 3000  # of the timeline: the longest
_BINS = 60  # of the memory that was sampled


def typical_run(measured: Measurement) -> tuple[int, list[Record]]:
    """The run whose length is in the middle, and its records."""
    turn = median_run(measured)
    return turn, [record for record in measured.trace.records if record.iteration == turn]


def timeline(measured: Measurement, analysis: Analysis) -> list[dict[str, Any]]:
    """The records of a typical run, from its beginning; lanes are threads."""
    turn, records = typical_run(measured)
    began = measured.trace.runs[turn].start
    bounds = {(node.provider, node.operator, node.name): node.bound for node in analysis.nodes}
    lanes = {thread: lane for lane, thread in enumerate(dict.fromkeys(r.thread for r in records))}
    kept = sorted(records, key=lambda record: -record.duration)[:_MAX_RECORDS]
    return [
        {
            "name": record.node,
            "operator": record.operator,
            "start": record.start - began,
            "time": record.duration,
            "lane": lanes[record.thread],
            "bound": bounds[record.provider, record.operator, record.node],
        }
        for record in sorted(kept, key=lambda record: record.start)
    ]


def memory_lines(measured: Measurement) -> dict[str, Any]:
    """Bytes over the time of a typical run: tensors in use, the engine's arena, this process."""
    turn, records = typical_run(measured)
    run = measured.trace.runs[turn]
    tensors = measured.graphs.live_bytes(records)
    return {
        "duration": run.duration,
        "tensors": [(start - run.start, size) for start, size in tensors],
        "arena": [(r.start - run.start, r.memory) for r in records if r.memory is not None],
        "process": _folded(measured, run.duration),
    }


def _folded(measured: Measurement, duration: float) -> list[tuple[float, int]]:
    """Samples of all runs as if of one: a run may be shorter than the time between two samples."""
    timing = measured.timing
    bins: dict[int, list[int]] = {}
    for when, size in timing.resident:
        place = int(np.searchsorted(timing.starts, when)) - 1
        if place >= 0 and when < timing.starts[place] + timing.times[place]:
            phase = (when - timing.starts[place]) / timing.times[place]
            bins.setdefault(int(phase * _BINS), []).append(size)
    return [
        ((place + 0.5) / _BINS * duration, int(np.median(sizes)))
        for place, sizes in sorted(bins.items())
    ]
