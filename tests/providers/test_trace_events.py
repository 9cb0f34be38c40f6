"""NodeTimer: nodes are recorded with onnxruntime's names, and only if profiling is on."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onward.graph.builder import OpBuilder
from onward.providers.reference import ReferenceProvider
from onward.providers.torch.lower import lower
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.table import HOST, KERNELS
from onward.providers.trace_events import NodeTimer, Profiled, type_word

CPU = torch.device("cpu")


def looped() -> ir.Model:
    op = OpBuilder(opset=20)
    x = op.input("x", "float32", (2, 3))
    return op.model(y=op.Relu(op.Split(x, num_outputs=3, axis=1, outputs=3)[1]))


def events_of(provider: Any) -> list[dict[str, Any]]:
    started = time.time_ns()
    executable = provider.compile(looped())
    assert isinstance(executable, Profiled)
    executable.run([np.ones((2, 3), np.float32)])
    found: list[dict[str, Any]] = executable.node_events(started)
    return found


def test_torch_and_the_reference_record_every_node() -> None:
    for provider in (TorchProvider("Torch", CPU, profiled=True), ReferenceProvider(profiled=True)):
        split, relu = events_of(provider)
        assert split["args"]["op_name"] == "Split" and relu["args"]["op_name"] == "Relu"
        assert split["args"]["output_type_shape"] == [{"float": [2, 1]}] * 3
        assert split["ts"] >= 0 and split["ts"] + split["dur"] <= relu["ts"]
        assert relu["args"]["provider"] == provider.name


def test_code_without_profiling_records_nothing() -> None:
    assert events_of(TorchProvider("Torch", CPU)) == []
    assert events_of(ReferenceProvider()) == []
    plain = lower(looped().graph, KERNELS, HOST)
    noted = lower(looped().graph, KERNELS, HOST, notes=NodeTimer("Torch", lambda _: None))
    assert "note(" not in plain.source and "now(" not in plain.source
    assert noted.source.count("note(") == 2


def test_timer_waits_for_the_device() -> None:
    waits: list[int] = []
    notes = NodeTimer("Torch", lambda _: ("float", ()), lambda: waits.append(1))
    notes.record(notes.add_node(None, "Relu", ["y"]), time.perf_counter_ns(), [1.0])
    [event] = notes.events(0)
    assert waits == [1] and event["name"] == "Relu_0_kernel_time"


def test_type_word() -> None:
    assert [type_word(d) for d in (ir.DataType.FLOAT, ir.DataType.INT64)] == ["float", "int64"]
