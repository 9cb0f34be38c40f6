"""PartitionTrace: the profile of a divided model, written as one trace.

onnxruntime writes a trace for each of its parts; here they are merged with the events of the other
engines, on one clock and in one file, in onnxruntime's format.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onward.graph.paths import writing
from onward.providers.provider import Executable
from onward.providers.trace_events import Event, Profiled


class PartitionTrace:
    """Events of runs and parts; those of the nodes are added at the end."""

    def __init__(self) -> None:
        self.started = time.time_ns()
        self._clock_offset = self.started - time.perf_counter_ns()
        self._events: list[Event] = []

    def record(self, category: str, name: str, start: int, **details: Any) -> None:
        """Add an event that began at `start` (perf_counter_ns) and ends now."""
        took = time.perf_counter_ns() - start
        event = {
            "cat": category,
            "ph": "X",
            "pid": 0,
            "tid": threading.get_ident(),
            "name": name,
            "ts": (start + self._clock_offset - self.started) / 1e3,
            "dur": took / 1e3,
            "args": details,
        }
        self._events.append(event)

    def write(self, prefix: str, parts: Iterable[tuple[int, Executable]]) -> str:
        """Write all events to one file, in order of time, and return its name."""
        events = list(self._events)
        for number, executable in parts:
            if isinstance(executable, Profiled):
                for event in executable.node_events(self.started):
                    event["args"] = {**event.get("args", {}), "part": number}
                    events.append(event)
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        path = Path(f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json")
        with writing(path):
            path.write_text(json.dumps(events))
        return str(path)
