"""The process of an isolated session: it limits itself, opens the model, and runs it.

    python -m onward.sessions.isolated_worker        messages on standard input and output

The limits hold before the model's first byte is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from onward.errors import MemoryLimitExceeded
from onward.providers.options import RunOptions
from onward.sessions.inference import InferenceSession
from onward.workers import messages, resource_limits
from onward.workers.option_messages import unpack_options
from onward.workers.request_loop import Request, serve

Reply = tuple[dict[str, Any], list[Any]]

_NO_MEMORY = (
    "bad_alloc", "bad allocation", "Failed to allocate memory", "can't allocate memory",
    "Unable to allocate", "Cannot allocate memory", "not enough memory", "std::length_error",
)  # fmt: skip
_METADATA = (
    "producer_name", "graph_name", "domain", "description", "graph_description", "version",
    "custom_metadata_map",
)  # fmt: skip


class IsolatedSession:
    """The session of this process, and the handlers of its parent's requests."""

    def __init__(self, open_session: Callable[..., Any] = InferenceSession) -> None:
        self._open_session = open_session
        self._session: InferenceSession | None = None
        self._limit: int | None = None

    def handlers(self) -> dict[str, Callable[[Request], Reply]]:
        return {
            "open": self._handler(self._open),
            "run": self._handler(self._run),
            "end_profiling": self._handler(self._end_profiling),
        }

    def _handler(self, handle: Callable[[Request], Reply]) -> Callable[[Request], Reply]:
        """Send the handler's warnings along, and name the memory limit where it was exceeded."""

        def with_warnings(request: Request) -> Reply:
            try:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("default")
                    reply, buffers = handle(request)
            except Exception as error:
                if self._limit is None or not _is_memory_error(error):
                    raise
                raise MemoryLimitExceeded(
                    f"the isolated process needs more than its memory limit of {self._limit:,} "
                    "bytes\nraise SessionOptions.memory_limit, or feed smaller batches"
                ) from error
            raised = [[each.category.__name__, str(each.message)] for each in caught]
            return {**reply, "warnings": raised}, buffers

        return with_warnings

    def _open(self, request: Request) -> Reply:
        header, buffers = request.header, request.buffers
        options = unpack_options(header["options"], buffers)
        self._limit, options.memory_limit = options.memory_limit, None
        resource_limits.limit_resources(self._limit, options, header["writes"])
        source = header["path"] if header["path"] is not None else next(buffers).tobytes()
        providers = [(name, given) for name, given in header["providers"]] or None
        self._session = self._open_session(source, options, providers, weights=header["weights"])
        self._session._cache = None  # the parent has it; this session has checked the model
        return _description(self._session), []

    def _run(self, request: Request) -> Reply:
        assert self._session is not None
        header, run_options = request.header, None
        if header["run_options"] is not None:  # None: the run is never interrupted
            run_options = RunOptions()
            vars(run_options).update(header["run_options"])
            request.on_interrupt(partial(setattr, run_options, "terminate", True))
        feeds = {name: messages.unpack(packed, request.buffers) for name, packed in header["feeds"]}
        results = self._session.run(header["names"], feeds, run_options)
        buffers: list[Any] = []
        return {"results": [messages.pack(result, buffers) for result in results]}, buffers

    def _end_profiling(self, _: Request) -> Reply:
        assert self._session is not None
        return {"file": self._session.end_profiling()}, []


def _is_memory_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _description(session: InferenceSession) -> dict[str, Any]:
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
        "meta": {name: getattr(meta, name) for name in _METADATA},
    }


if __name__ == "__main__":
    resource_limits.drop_rights()
    serve(IsolatedSession().handlers())
