"""The child's side of a worker: read requests, run their handlers, send the replies.

if __name__ == "__main__":
    serve({"open": open_model, "run": run_model})

A handler takes a Request and returns a reply's header and its buffers. What engines print goes to
stderr, never between the messages. The process ends with its parent.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from onward.errors import NodeFailed
from onward.workers import messages

_PR_SET_PDEATHSIG = 1


class Request:
    """One request: its header and buffers, progress messages, and what an interrupt does."""

    def __init__(self, header: dict[str, Any], buffers: Iterator[Any], replies: Any) -> None:
        self.header, self.buffers, self._replies = header, buffers, replies
        self._lock = threading.Lock()
        self._is_interrupted = False
        self._stop: Callable[[], None] | None = None

    def send_progress(self, **fields: Any) -> None:
        messages.send(self._replies, {"progress": fields})

    def on_interrupt(self, stop: Callable[[], None] | None) -> None:
        """Call `stop` when the parent interrupts this request, or now if it already has."""
        with self._lock:
            self._stop = stop
            if self._is_interrupted and stop is not None:
                stop()

    def interrupt(self) -> None:
        with self._lock:
            self._is_interrupted = True
            if self._stop is not None:
                self._stop()


Handler = Callable[[Request], tuple[dict[str, Any], Sequence[Any]]]


def serve(handlers: Mapping[str, Handler]) -> NoReturn:
    """Answer requests on standard input until the parent closes it."""
    requests_file = os.fdopen(os.dup(0), "rb", 0)
    replies = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)  # engines print to stdout
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _end_with_parent()
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests_file, replies, requests), daemon=True).start()
    while True:
        request = requests.get()
        header, buffers = _answer(handlers, request)
        messages.send(replies, header, buffers)


def _answer(
    handlers: Mapping[str, Handler], request: Request
) -> tuple[dict[str, Any], Sequence[Any]]:
    try:
        return handlers[request.header["do"]](request)
    except Exception as error:  # it is raised again in the parent
        text = str(error.args[0]) if len(error.args) == 1 else str(error)
        op_type = error.op_type if isinstance(error, NodeFailed) else ""
        return {"error": type(error).__name__, "text": text, "op_type": op_type}, []
    finally:
        request.on_interrupt(None)


def _listen(file: Any, replies: Any, requests: queue.SimpleQueue[Request]) -> None:
    """Queue requests; `interrupt` is for the latest one."""
    request: Request | None = None
    try:
        while True:
            header, buffers = messages.receive(file)
            if header["do"] != "interrupt":
                request = Request(header, buffers, replies)
                requests.put(request)
            elif request is not None:
                request.interrupt()
    except BaseException:  # the parent has ended: end too, whatever is running
        os._exit(0)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
