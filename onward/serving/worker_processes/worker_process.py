"""The process of a served model: an isolated session whose tensors pass through shared memory.

    python -m onward.serving.worker_processes.worker_process      messages on its standard pipes

`open` and `run` are those of `onward.sessions.isolated_worker`; there are also `run_in_area`,
`write_shared` (the model's weights for several workers) and `measure` (runs per second).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from onward.graph.random_feeds import random_feeds
from onward.providers.options import SessionOptions
from onward.serving.worker_processes.buffer_area import BufferArea, open_area
from onward.serving.worker_processes.shared_weights import open_shared_model, write_shared_model
from onward.sessions.inference import InferenceSession
from onward.sessions.isolated_worker import IsolatedSession
from onward.workers import resource_limits
from onward.workers.request_loop import Request, serve

Reply = tuple[dict[str, Any], list[Any]]
Handler = Callable[[Request], Reply]


def handlers() -> dict[str, Handler]:
    """The handlers of this process, by request."""
    isolated: dict[str, Handler] = {}

    def open_model(request: Request) -> Reply:
        opens = open_shared_model if request.header["is_shared"] else InferenceSession
        isolated.update(IsolatedSession(opens).handlers())
        return isolated["open"](request)

    def run(request: Request) -> Reply:
        return isolated["run"](request)

    return {
        "open": open_model,
        "run": run,
        "run_in_area": _run_in_area(run),
        "write_shared": _write_shared,
        "measure": _measure,
    }


def _run_in_area(run: Handler) -> Handler:
    """Run with buffers in the area, whose file descriptor each request names."""
    areas: dict[int, BufferArea] = {}

    def handle(request: Request) -> Reply:
        file = request.header["area"]
        if file not in areas:
            areas[file] = open_area(file)
        area = areas[file]
        request.buffers = area.take(request.header["places"], request.buffers)
        reply, buffers = run(request)
        places, rest = area.put(buffers)
        return {**reply, "places": places}, rest

    return handle


def _write_shared(request: Request) -> Reply:
    header = request.header
    return {"is_shared": write_shared_model(header["path"], header["folder"])}, []


def _measure(request: Request) -> Reply:
    """Runs per second of so many sessions at once, each in a thread."""
    header = request.header
    options = SessionOptions(intra_op_num_threads=header["threads"])
    providers = header["providers"]
    sessions = [
        InferenceSession(header["path"], options, providers) for _ in range(header["instances"])
    ]
    feeds = random_feeds(sessions[0].get_inputs())
    for session in sessions:
        session.run(None, feeds)
    end = time.perf_counter() + header["seconds"]
    counts = [0] * len(sessions)

    def run_until_end(index: int) -> None:
        while time.perf_counter() < end:
            sessions[index].run(None, feeds)
            counts[index] += 1

    started = time.perf_counter()
    threads = [threading.Thread(target=run_until_end, args=(i,)) for i in range(len(sessions))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return {"runs_per_second": sum(counts) / (time.perf_counter() - started)}, []


if __name__ == "__main__":
    resource_limits.drop_rights()
    serve(handlers())
