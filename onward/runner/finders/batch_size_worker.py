"""The child process of a batch size search: makes steps of growing batches within a limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from onward.errors import MemoryLimitExceeded
from onward.measure.memory.resident_memory import MEASURABLE, most_resident, reset_peak
from onward.programs.program import LOSS
from onward.programs.program_files import read_program
from onward.providers.options import SessionOptions
from onward.sessions.training.session import TrainingSession
from onward.sessions.training.training_program import TrainingProgram
from onward.workers import messages
from onward.workers.request_loop import Request, serve
from onward.workers.resource_limits import limit_resources

_STEPS = 3  # that are timed, after one that allocates
_OUT_OF_MEMORY = ("memory", "alloc")  # in the messages of engines


def serve_search() -> None:
    """Open the program that the first request names, then make steps as often as asked."""
    session: TrainingSession

    def open_program(request: Request) -> tuple[dict[str, Any], list[Any]]:
        nonlocal session
        header = request.header
        options = SessionOptions(**header["settings"])
        options = replace(options, log_severity_level=4)
        _be_killed_first()
        if header["memory"] is not None and MEASURABLE:
            limit_resources(header["memory"], options, writes=True)
        program = TrainingProgram(read_program(Path(header["program"])))
        session = TrainingSession(program, sess_options=options, providers=header["providers"])
        return {}, []

    def step(request: Request) -> tuple[dict[str, Any], list[Any]]:
        feeds = {
            name: messages.unpack(packed, request.buffers)
            for name, packed in request.header["feeds"]
        }
        try:
            return {"seconds": _time_step(session, feeds), "memory": most_resident()}, []
        except Exception as error:
            if isinstance(error, MemoryError) or _is_out_of_memory(error):
                raise MemoryLimitExceeded("it does not fit the memory") from error
            raise

    serve({"open": open_program, "step": step})


def _time_step(session: TrainingSession, feeds: Mapping[str, Any]) -> float:
    """The shortest time of an update, in seconds; reading its loss waits for a GPU."""
    reset_peak()
    micro = session.program.settings.accumulate
    times = []
    for _ in range(_STEPS + 1):
        start = time.perf_counter()
        for _ in range(micro):
            results = session.step(feeds)
        float(results[LOSS])
        times.append((time.perf_counter() - start) / micro)
    return min(times[1:])


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return any(word in text for word in _OUT_OF_MEMORY)


def _be_killed_first() -> None:
    """Where memory runs out all the same, let the system end this process, not its parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    serve_search()
