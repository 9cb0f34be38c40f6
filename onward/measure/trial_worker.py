"""The child process of a trial: opens the candidate's session, and times its runs.

On a GPU, torch rounds the float32 numbers of convolutions to TF32, and the results differ by more
than engines may. So the session whose results are compared computes in whole float32; another one
is timed, as the user would run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from onward.errors import ProviderError
from onward.lazy import LazyModule
from onward.measure.memory.resident_memory import most_resident
from onward.measure.tuning.trials import BARE, Candidate
from onward.providers.choose import INDUCTOR, TORCH
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.sessions.inference import InferenceSession
from onward.workers import messages
from onward.workers.request_loop import Handler, Request, serve

if TYPE_CHECKING:
    from onward.providers.torch import full_float32
else:  # it loads torch
    full_float32 = LazyModule("onward.providers.torch.full_float32")

_MIN_CALLS = 3

Opener = Callable[[Mapping[str, Any]], Callable[..., Any]]  # request -> run(names, feeds)
Reply = tuple[dict[str, Any], Sequence[Any]]


def serve_trial(opener: Opener, **others: Handler) -> NoReturn:
    """Open what the first request names, then measure as often as asked.

    `others` are the handlers of other requests.
    """
    call: Callable[[], Any]

    def open_and_run(request: Request) -> Reply:
        nonlocal call
        call, reply, buffers = _first_run(opener, request)
        return reply, buffers

    def measure(request: Request) -> Reply:
        return _measure(call, request.header["seconds"], request.header["most"]), []

    handlers = {"open": open_and_run, "measure": measure, **others}
    serve({name: _one_line_errors(handle) for name, handle in handlers.items()})


def _one_line_errors(handle: Handler) -> Handler:
    """Any error of an engine is the trial's result: a ProviderError with its first line."""

    def handle_errors(request: Request) -> Reply:
        try:
            return handle(request)
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            raise ProviderError(f"{type(error).__name__}: {text[:300]}") from error

    return handle_errors


def _first_run(
    opener: Opener, request: Request
) -> tuple[Callable[[], Any], dict[str, Any], list[Any]]:
    packed = request.header["feeds"]
    feeds = {name: messages.unpack(feed, request.buffers) for name, feed in packed}
    precision = _full_precision(Candidate(**request.header["candidate"]))
    start = time.perf_counter()
    with precision or nullcontext():
        run = opener(request.header)
        results = run(None, feeds)
    seconds = time.perf_counter() - start
    if precision is not None:
        run = opener(request.header)
        run(None, feeds)
    buffers: list[Any] = []
    outputs = [messages.pack(r, buffers) for r in results if isinstance(r, np.ndarray)]
    return lambda: run(None, feeds), {"seconds": seconds, "outputs": outputs}, buffers


def _full_precision(candidate: Candidate) -> AbstractContextManager[None] | None:
    """The context of a comparison where the engine rounds by default; None: it does not."""
    if candidate.provider not in (TORCH, INDUCTOR):
        return None
    is_rounding = full_float32.may_round(candidate.provider_options)
    return full_float32.full_float32() if is_rounding else None


def open_session(request: Mapping[str, Any]) -> Callable[..., Any]:
    """The run method of the candidate's session."""
    candidate = Candidate(**request["candidate"])
    options = SessionOptions(**request["settings"])
    if candidate.threads:
        options.intra_op_num_threads = candidate.threads
    if candidate.provider == BARE:
        native = ort.create(request["model"], options, [("CPUExecutionProvider", {})])
        return native.run  # type: ignore[no-any-return]
    options.own_passes = candidate.own_passes
    named = (candidate.provider, candidate.provider_options)
    return InferenceSession(request["model"], options, [named], weights=request["weights"]).run


def _measure(call: Callable[[], Any], seconds: float, most: int) -> dict[str, Any]:
    clock = time.perf_counter
    times: list[float] = []
    deadline = clock() + seconds
    while len(times) < _MIN_CALLS or (len(times) < most and clock() < deadline):
        start = clock()
        call()
        times.append(clock() - start)
    return {"times": times, "memory": most_resident()}


if __name__ == "__main__":
    serve_trial(open_session)
