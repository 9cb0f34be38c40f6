"""Trace events: the time of each node, in Chrome's trace format and with onnxruntime's names.

Recorded while `enable_profiling` is on, for engines that have no such trace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import onnx_ir as ir

Event = dict[str, Any]
TypeAndShape = tuple[str, tuple[int, ...]]  # onnxruntime's name of the type, and the shape


@runtime_checkable
class Profiled(Protocol):
    """An executable that records the time of each node."""

    def node_events(self, started: int) -> list[Event]:
        """Every event since it was compiled; `ts` counts from `started` (time.time_ns)."""
        ...


class NodeTimer:
    """Records the time and the results' shapes of each node while a graph runs."""

    def __init__(
        self,
        provider: str,
        describe: Callable[[Any], TypeAndShape | None],
        wait: Callable[[], None] | None = None,
    ) -> None:
        self._provider, self._describe, self._wait = provider, describe, wait
        self._nodes: list[tuple[str, str, list[str]]] = []  # name, operator, outputs
        self._records: list[tuple[int, int, int, int, list[TypeAndShape | None]]] = []
        self._clock_offset = time.time_ns() - time.perf_counter_ns()

    def add_node(self, name: str | None, operator: str, outputs: Sequence[str | None]) -> int:
        """Add a node of the graph; returns its number, for `record`."""
        number = len(self._nodes)
        self._nodes.append((name or f"{operator}_{number}", operator, [o or "" for o in outputs]))
        return number

    def record(self, number: int, start: int, results: Sequence[Any]) -> None:
        """Record that a node, started at `start` (perf_counter_ns), has returned these results."""
        if self._wait is not None:
            self._wait()
        took = time.perf_counter_ns() - start
        shapes = [self._describe(result) for result in results]
        self._records.append((number, start, took, threading.get_ident(), shapes))

    def events(self, started: int) -> list[Event]:
        """All recorded events; `ts` counts from `started` (time.time_ns)."""
        found = []
        for number, start, took, thread, shapes in self._records:
            name, operator, outputs = self._nodes[number]
            found.append(
                {
                    "cat": "Node",
                    "ph": "X",
                    "pid": 0,
                    "tid": thread,
                    "name": f"{name}_kernel_time",
                    "ts": (start + self._clock_offset - started) / 1e3,
                    "dur": took / 1e3,
                    "args": {
                        "op_name": operator,
                        "provider": self._provider,
                        "outputs": outputs,
                        "output_type_shape": [{s[0]: list(s[1])} for s in shapes if s is not None],
                    },
                }
            )
        return found


def type_word(dtype: ir.DataType) -> str:
    """A type in onnxruntime's words: "float", "int64"."""
    return dtype.name.lower()
