"""The child of a trial: reads requests, a JSON object a line, and answers each with one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onward.measure.memory.resident_memory import most_resident
from onward.measure.tuning.trials import BARE, Candidate, read_tensors, write_tensors
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.sessions.inference import InferenceSession

_FEWEST = 3

Opener = Callable[[Mapping[str, Any]], Callable[..., Any]]  # request -> run(names, feeds)


def serve(opener: Opener) -> None:
    """Open what the first line asks for, then measure as often as it is asked."""
    requests = sys.stdin
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # nobody else may write on this line
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    call: Callable[[], Any] | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if call is None:
                call, answer = _first_run(opener, request)
            else:
                answer = _measure(call, request["seconds"], request["most"])
        except Exception as error:  # whatever an engine raises is the trial's result
            text = (str(error).strip().splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {text[:300]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _first_run(
    opener: Opener, request: Mapping[str, Any]
) -> tuple[Callable[[], Any], dict[str, Any]]:
    folder = Path(request["folder"])
    feeds = read_tensors(folder / "feeds.npz", request["dtypes"])
    start = time.perf_counter()
    run = opener(request)
    results = run(None, feeds)
    seconds = time.perf_counter() - start
    tensors = {str(i): r for i, r in enumerate(results) if isinstance(r, np.ndarray)}
    dtypes = write_tensors(folder / "outputs.npz", tensors)
    return lambda: run(None, feeds), {"seconds": seconds, "dtypes": dtypes}


def open_session(request: Mapping[str, Any]) -> Callable[..., Any]:
    """The candidate's session, ready to run."""
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
    while len(times) < _FEWEST or (len(times) < most and clock() < deadline):
        start = clock()
        call()
        times.append(clock() - start)
    return {"times": times, "memory": most_resident()}


if __name__ == "__main__":
    serve(open_session)
