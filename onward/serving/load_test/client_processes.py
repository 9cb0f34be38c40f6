"""Run a load test: in this process, or in several, whose figures are merged.

A client process is `python -m onward.serving.load_test.client_processes`. It reads a line of JSON
with its plan and the sizes of the payloads, then the payloads; it starts when it reads the line
`go`, and stops early when it reads another one, or the end. It prints lines of JSON: ready,
progress, figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from onward.errors import ModelUnavailable
from onward.serving.load_test.load_figures import LoadFigures, merge_figures
from onward.serving.load_test.load_loop import LoadLoop, Progress
from onward.serving.load_test.load_plan import LoadPlan, split_plan

try:
    import uvloop
except ImportError:  # Windows
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")


def run_load(
    plan: LoadPlan,
    payloads: Sequence[bytes],
    processes: int = 1,
    on_progress: Progress | None = None,
) -> LoadFigures:
    """Load a server. Ctrl-C ends it early: the figures are then those so far."""
    if processes == 1:
        return _run_loop(_run_here(plan, payloads, on_progress))
    return _run_loop(_run_in_processes(split_plan(plan, processes), payloads, on_progress))


def _run_loop(work: Coroutine[Any, Any, T]) -> T:
    factory = uvloop.new_event_loop if uvloop is not None else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


async def _run_here(
    plan: LoadPlan, payloads: Sequence[bytes], on_progress: Progress | None
) -> LoadFigures:
    load = LoadLoop(plan, payloads)
    with _on_interrupt(load.stop):
        return await load.run(on_progress)


@contextlib.contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Any:
    """Call `stop` at Ctrl-C, where this thread may handle signals."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# -- the parent -----------------------------------------------------------------------------------


async def _run_in_processes(
    plans: Sequence[LoadPlan], payloads: Sequence[bytes], on_progress: Progress | None
) -> LoadFigures:
    clients = [await _Client.start(plan, payloads) for plan in plans]

    def stop() -> None:
        for client in clients:
            client.write(b"stop\n")

    def progressed() -> None:
        parts = [client.progress for client in clients if client.progress is not None]
        if on_progress is not None and len(parts) == len(clients):
            seconds = max(seconds for seconds, _ in parts)
            on_progress(seconds, merge_figures([figures for _, figures in parts]))

    try:
        for client in clients:
            await client.read_until("ready")
        with _on_interrupt(stop):
            for client in clients:
                client.write(b"go\n")
            reading = [client.read_until("figures", progressed) for client in clients]
            found = await asyncio.gather(*reading)
    finally:
        for client in clients:
            await client.end()
    return merge_figures([LoadFigures.from_json(each) for each in found])


class _Client:
    """A client process, seen from its parent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.progress: tuple[float, LoadFigures] | None = None

    @classmethod
    async def start(cls, plan: LoadPlan, payloads: Sequence[bytes]) -> _Client:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "onward.serving.load_test.client_processes"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
            start_new_session=True,  # Ctrl-C reaches the parent, which stops its clients
        )
        client = cls(process)
        head = {"plan": asdict(plan), "sizes": [len(each) for each in payloads]}
        client.write(json.dumps(head).encode() + b"\n" + b"".join(payloads))
        return client

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def read_until(self, wanted: str, on_progress: Callable[[], None] | None = None) -> Any:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            [(kind, value)] = json.loads(line).items()
            if kind == wanted:
                return value
            if kind == "progress":
                self.progress = value["seconds"], LoadFigures.from_json(value["figures"])
                if on_progress is not None:
                    on_progress()
        raise ModelUnavailable("a client process of the load test ended")

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


# -- the child ------------------------------------------------------------------------------------


def main() -> None:
    """A client process: read a plan and payloads, run them, print the figures."""
    stream = sys.stdin.buffer
    head = json.loads(stream.readline())
    payloads = [stream.read(size) for size in head["sizes"]]
    plan = LoadPlan(**head["plan"])
    print(json.dumps({"ready": True}), flush=True)
    if stream.readline() != b"go\n":
        return
    figures = _run_loop(_run_child(plan, payloads))
    print(json.dumps({"figures": figures.to_json()}), flush=True)


async def _run_child(plan: LoadPlan, payloads: Sequence[bytes]) -> LoadFigures:
    load, loop = LoadLoop(plan, payloads), asyncio.get_running_loop()

    def wait_for_stop() -> None:
        os.read(sys.stdin.fileno(), 1)  # not sys.stdin: its lock would be held at the exit
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(load.stop)

    threading.Thread(target=wait_for_stop, daemon=True).start()

    def send(seconds: float, figures: LoadFigures) -> None:
        progress = {"seconds": seconds, "figures": figures.to_json()}
        print(json.dumps({"progress": progress}), flush=True)

    return await load.run(send)


if __name__ == "__main__":
    main()
