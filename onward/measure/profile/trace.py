"""Traces: the events that engines recorded, read into one form.

A session's trace is in Chrome's format, as onnxruntime writes it: `model_run` is one run,
`..._kernel_time` one node; a divided model's has its parts as well. A part whose engine tells
nothing of its nodes (a compiled one) is one record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.graph.costs.flops import Tensor
from onward.graph.operators import CONTROL_FLOW
from onward.providers.trace_events import Event, type_word

_KERNEL = "_kernel_time"
_HOLDERS = CONTROL_FLOW | {"SequenceMap", "BeamSearch", "GreedySearch", "Sampling"}
_DTYPES = {type_word(dtype): dtype for dtype in ir.DataType}
PART = "compiled part"  # the operator of a part that is one record


@dataclass(frozen=True)
class Record:
    """One execution of one node (or of a compiled part). Times are in seconds."""

    node: str
    operator: str
    provider: str
    start: float  # since profiling began
    duration: float  # without the nodes of its subgraphs, which have records of their own
    thread: int
    iteration: int
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    output_names: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()  # a compiled part's inputs
    waited: float = 0.0  # how long the main thread waited for the others
    memory: int | None = None  # bytes that the engine's arena had in use


@dataclass(frozen=True)
class TracedRun:
    """One run of the model: when, how long, and how much of it the engines were executing."""

    start: float
    duration: float
    executing: float


@dataclass(frozen=True)
class Trace:
    """All records of a session, and its runs."""

    records: list[Record]
    runs: list[TracedRun]

    def between(self, first: int, last: int) -> Trace:
        """The iterations from `first` up to, not including, `last`, numbered from 0."""
        kept = [
            replace(record, iteration=record.iteration - first)
            for record in self.records
            if first <= record.iteration < last
        ]
        return Trace(kept, self.runs[first:last])


def read_trace(path: str | Path) -> Trace:
    """Read the file that `end_profiling` wrote."""
    events: list[Event] = json.loads(Path(path).read_text())
    return to_trace([event for event in events if event.get("ph") == "X"])


def to_trace(events: Sequence[Event]) -> Trace:
    """A session's events as records by iteration, and the runs they belong to."""
    runs = sorted((e for e in events if e["name"] == "model_run"), key=lambda e: float(e["ts"]))
    nodes = [event for event in events if event["name"].endswith(_KERNEL)]
    with_nodes = {event["args"].get("part") for event in nodes}
    parts = [
        event
        for event in events
        if event["cat"] == "Part" and event["args"]["part"] not in with_nodes
    ]
    # onnxruntime records when it executes; of other engines only the part is known
    ort = {event["args"].get("part") for event in events if event["name"] == "part_run"}
    working = [event for event in events if event["name"].endswith("Executor::Execute")]
    working += [e for e in events if e["cat"] == "Part" and e["args"]["part"] not in ort]
    edges = [_seconds(run["ts"]) for run in runs]
    found = [_record(event, edges) for event in (*_without_bodies(nodes), *parts)]
    found.sort(key=lambda record: record.start)
    spans = [(_seconds(e["ts"]), _seconds(e["ts"] + e["dur"])) for e in working]
    return Trace(
        [record for record in found if record.iteration >= 0],
        [_run(run, spans) for run in runs],
    )


def _record(event: Event, edges: Sequence[float]) -> Record:
    args, start = event.get("args", {}), _seconds(event["ts"])
    is_part = event["cat"] == "Part"
    memory = args.get("mem_bytes_in_use")
    return Record(
        node=event["name"] if is_part else event["name"].removesuffix(_KERNEL),
        operator=PART if is_part else args.get("op_name", "?"),
        provider=args.get("provider", "?"),
        start=start,
        duration=_seconds(event["dur"]),
        thread=event["tid"],
        iteration=sum(edge <= start for edge in edges) - 1,
        inputs=_tensors(args.get("input_type_shape", ())),
        outputs=_tensors(args.get("output_type_shape", ())),
        output_names=tuple(args.get("gives") or args.get("outputs") or ()),
        takes=tuple(args.get("takes", ())),
        waited=_waited(args.get("thread_scheduling_stats")),
        memory=None if memory is None else int(memory),
    )


def _without_bodies(nodes: Sequence[Event]) -> list[Event]:
    """Subtract the time of a node's subgraphs from its own."""
    ordered = sorted(nodes, key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    own = [float(event["dur"]) for event in ordered]
    open_: list[int] = []  # nodes with subgraphs that may contain the current one
    for number, event in enumerate(ordered):
        while open_ and not _holds(ordered[open_[-1]], event):
            open_.pop()
        if open_:
            own[open_[-1]] -= event["dur"]
        if event["args"].get("op_name") in _HOLDERS:
            open_.append(number)
    return [{**event, "dur": max(0.0, dur)} for event, dur in zip(ordered, own, strict=True)]


def _holds(outer: Event, inner: Event) -> bool:
    return bool(outer["tid"] == inner["tid"] and inner["ts"] < outer["ts"] + outer["dur"])


def _run(event: Event, spans: Iterable[tuple[float, float]]) -> TracedRun:
    start, end = _seconds(event["ts"]), _seconds(event["ts"] + event["dur"])
    inside = sorted((max(a, start), min(b, end)) for a, b in spans if a < end and b > start)
    executing, reached = 0.0, start
    for a, b in inside:
        executing += max(0.0, b - max(a, reached))
        reached = max(reached, b)
    return TracedRun(start, end - start, executing)


def _tensors(described: Iterable[dict[str, list[int]]]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(_DTYPES.get(word), tuple(shape))
        for entry in described
        for word, shape in entry.items()
    )


def _waited(stats: Any) -> float:
    """How long the main thread waited for the others, as onnxruntime's thread pool records it."""
    main = (stats or {}).get("main_thread") if isinstance(stats, dict) else None
    return _seconds(main.get("Wait", 0) + main.get("WaitRevoke", 0)) if main else 0.0


def _seconds(microseconds: float) -> float:
    return float(microseconds) / 1e6
