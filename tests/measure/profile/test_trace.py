"""Traces of several engines come out in one form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from onward.graph.costs.flops import Tensor
from onward.measure.profile.trace import PART, read_trace, to_trace


def event(name: str, ts: float, dur: float, cat: str = "Node", **args: Any) -> dict[str, Any]:
    where = {"cat": cat, "ph": "X", "pid": 1, "tid": 7}
    return {**where, "name": name, "ts": ts, "dur": dur, "args": args}


def node(name: str, operator: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return event(f"{name}_kernel_time", ts, dur, op_name=operator, provider="CPU", **args)


def test_records_belong_to_their_run() -> None:
    events = [
        event("model_loading", 0, 5, "Session"),
        event("model_run", 10, 10, "Session"),
        node("a", "Relu", 12, 3),
        event("model_run", 30, 10, "Session"),
        node("a", "Relu", 33, 4),
    ]
    trace = to_trace(events)
    assert [(r.node, r.operator, r.iteration) for r in trace.records] == [
        ("a", "Relu", 0),
        ("a", "Relu", 1),
    ]
    assert trace.records[1].duration == pytest.approx(4e-6)
    later = trace.between(1, 2)
    assert [r.iteration for r in later.records] == [0] and len(later.runs) == 1


def test_the_nodes_of_a_body_are_not_counted_twice() -> None:
    events = [
        event("model_run", 0, 100, "Session"),
        node("loop", "Loop", 10, 50),
        node("inner", "Relu", 12, 20),
        node("branch", "If", 35, 20),
        node("deep", "Add", 36, 10),
        node("after", "Relu", 60, 5),
    ]
    own = {r.node: round(r.duration * 1e6) for r in to_trace(events).records}
    assert own == {"loop": 10, "inner": 20, "branch": 10, "deep": 10, "after": 5}


def test_types_shapes_memory_and_waits_are_read() -> None:
    stats = {"main_thread": {"Wait": 3, "WaitRevoke": 1, "Run": 9}, "sub_threads": {}}
    args = {
        "input_type_shape": [{"float": [2, 3]}, {"int64": []}],
        "output_type_shape": [{"float16": [2]}],
        "mem_bytes_in_use": "4096",
        "thread_scheduling_stats": stats,
    }
    [record] = to_trace(
        [event("model_run", 0, 9, "Session"), node("a", "Relu", 1, 5, **args)]
    ).records
    assert record.inputs == (Tensor(ir.DataType.FLOAT, (2, 3)), Tensor(ir.DataType.INT64, ()))
    assert record.outputs == (Tensor(ir.DataType.FLOAT16, (2,)),)
    assert record.memory == 4096 and record.waited == pytest.approx(4e-6)


def test_a_part_without_node_events_is_one_record() -> None:
    part = {"provider": "Inductor", "takes": ["x"], "gives": ["y"]}
    events = [
        event("model_run", 0, 100, "Session"),
        event("Torch: t", 1, 30, "Part", provider="Torch", part=0, takes=["x"], gives=["t"]),
        node("n", "Relu", 2, 8, part=0),
        event("Inductor: y", 40, 50, "Part", part=1, **part),
    ]
    trace = to_trace(events)
    assert [(r.operator, r.provider) for r in trace.records] == [
        ("Relu", "CPU"),
        (PART, "Inductor"),
    ]
    assert trace.records[1].takes == ("x",) and trace.records[1].output_names == ("y",)
    assert trace.runs[0].executing == pytest.approx(80e-6)


def test_executing_time_is_the_engines_own() -> None:
    events = [
        event("model_run", 0, 100, "Session"),
        event("CPU: t", 1, 60, "Part", provider="CPU", part=0, takes=["x"], gives=["t"]),
        event("part_run", 5, 50, "Session", part=0),
        event("SequentialExecutor::Execute", 10, 40, "Session", part=0),
        event("SequentialExecutor::Execute", 20, 10, "Session", part=0),  # of a body
    ]
    assert to_trace(events).runs[0].executing == pytest.approx(40e-6)


def test_a_trace_is_read_from_its_file(tmp_path: Path) -> None:
    events = [event("model_run", 0, 9, "Session"), {"ph": "M", "name": "process_name"}]
    (tmp_path / "t.json").write_text(json.dumps(events))
    assert len(read_trace(tmp_path / "t.json").runs) == 1
