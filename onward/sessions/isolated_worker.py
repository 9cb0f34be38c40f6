"""The process of an isolated session: it limits itself, opens the model, and answers.

    python -m onward.sessions.isolated_worker        messages on standard input and output

The model has no say in any of this: the limits stand before its first byte is read.
"""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from onward.errors import MemoryLimitExceeded, NodeFailed
from onward.graph.limits import ModelLimits
from onward.lazy import LazyModule
from onward.providers.options import RunOptions, SessionOptions
from onward.providers.ort.ort_values import to_ort
from onward.sessions.inference import InferenceSession
from onward.workers import messages, resource_limits

planning = LazyModule("onward.sessions.planning")
Request = tuple[dict[str, Any], Iterator[Any], RunOptions]
Reply = tuple[dict[str, Any], list[Any]]

_NO_MEMORY = (
    "bad_alloc", "bad allocation", "Failed to allocate memory", "can't allocate memory",
    "Unable to allocate", "Cannot allocate memory", "not enough memory", "std::length_error",
)  # fmt: skip
_NESTED = {"limits": ModelLimits}  # settings that are settings themselves
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


class Worker:
    """Holds the session and answers one request after another."""

    def __init__(self) -> None:
        self._session: InferenceSession | None = None
        self._limit: int | None = None

    def answer(self, request: Request) -> Reply:
        header, buffers, run_options = request
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                does: Callable[..., Reply] = getattr(self, f"_{header['do']}")
                reply, out = does(header, buffers, run_options)
        except Exception as error:
            return self._failure(error), []
        told = [[type_name(w.category), str(w.message)] for w in caught]
        return {**reply, "warnings": told}, out

    def _failure(self, error: Exception) -> dict[str, Any]:
        text = str(error.args[0]) if len(error.args) == 1 else str(error)
        if self._limit is not None and _is_memory(error):
            text = (
                f"the isolated process needs more than its memory limit of {self._limit:,} bytes\n"
                "raise SessionOptions.memory_limit, or feed smaller batches"
            )
            return {"error": MemoryLimitExceeded.__name__, "text": text}
        op_type = error.op_type if isinstance(error, NodeFailed) else ""
        return {"error": type_name(type(error)), "text": text, "op_type": op_type}

    def _open(self, header: dict[str, Any], buffers: Iterator[Any], _: Any) -> Reply:
        options = _options(header["options"], buffers)
        self._limit, options.memory_limit = options.memory_limit, None
        resource_limits.contain(self._limit, options, header["writes"])
        source = header["path"] if header["path"] is not None else next(buffers).tobytes()
        if options.result_cache_bytes:  # the cache itself is the parent's
            planning.check_deterministic(source, options.limits)
            options.result_cache_bytes = 0
        providers = [(name, given) for name, given in header["providers"]] or None
        self._session = InferenceSession(source, options, providers, weights=header["weights"])
        return _about(self._session), []

    def _run(self, header: dict[str, Any], buffers: Iterator[Any], run_options: Any) -> Reply:
        assert self._session is not None
        feeds = {name: messages.unpack(packed, buffers) for name, packed in header["feeds"]}
        results = self._session.run(header["names"], feeds, run_options)
        out: list[Any] = []
        return {"results": [messages.pack(result, out) for result in results]}, out

    def _end_profiling(self, *_: Any) -> Reply:
        assert self._session is not None
        return {"file": self._session.end_profiling()}, []


def type_name(kind: type) -> str:
    return kind.__name__


def _is_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _options(given: dict[str, Any], buffers: Iterator[Any]) -> SessionOptions:
    options = SessionOptions()
    for setting in fields(SessionOptions):
        if setting.name not in given:
            continue
        value = given[setting.name]
        if setting.name == "initializers":
            value = {name: to_ort(messages.unpack(v, buffers)) for name, v in value}
        elif setting.name in _NESTED and value is not None:
            value = _NESTED[setting.name](**value)
        setattr(options, setting.name, value)
    return options


def _about(session: InferenceSession) -> dict[str, Any]:
    def listed(args: Any) -> list[Any]:
        return [[arg.name, arg.type, list(arg.shape or ())] for arg in args]

    meta = session.get_modelmeta()
    return {
        "inputs": listed(session.get_inputs()),
        "outputs": listed(session.get_outputs()),
        "overridable": listed(session.get_overridable_initializers()),
        "providers": session.get_providers(),
        "provider_options": session.get_provider_options(),
        "profiling_start": session.get_profiling_start_time_ns(),
        "meta": {name: getattr(meta, name) for name in meta_names},
    }


meta_names = (
    "producer_name", "graph_name", "domain", "description", "graph_description", "version",
    "custom_metadata_map",
)  # fmt: skip


def _listen(file: Any, requests: queue.SimpleQueue[Request]) -> None:
    """Take requests while others are answered; `terminate` is for the one under way."""
    run_options = RunOptions()
    try:
        while True:
            header, buffers = messages.receive(file)
            if header["do"] == "terminate":
                run_options.terminate = True
                continue
            run_options = RunOptions()
            vars(run_options).update(header.get("run_options", {}))
            requests.put((header, buffers, run_options))
    except BaseException:  # the parent is gone: so are we, whatever is under way
        os._exit(0)


def _settle() -> None:
    """What needs no knowledge of the model: no core dumps, no new rights, no orphan."""
    resource_limits.no_cores()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """Answer until the parent hangs up."""
    source = os.fdopen(os.dup(0), "rb", 0)
    sink = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)  # what engines print must not get between the messages
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _settle()
    requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, requests), daemon=True).start()
    worker = Worker()
    while True:
        reply, buffers = worker.answer(requests.get())
        messages.send(sink, reply, buffers)


if __name__ == "__main__":
    main()
