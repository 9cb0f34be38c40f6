"""The child process that opens and runs a model, and measures the memory that both add."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.graph.random_feeds import input_shapes, random_feeds
from onward.measure.memory import resident_memory
from onward.providers.choose import OWN_PROVIDERS
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

# y = Conv(x, w), padded, 16 channels of 32 x 32: small, but with work for every thread.
_TINY = (
    b'\x08\x07:~\n"\n\x01x\n\x01w\x12\x01y"\x04Conv*\x11\n\x04pads@\x01@\x01@\x01@\x01\xa0\x01\x07\x12\x01g'
    b"Z\x1b\n\x01x\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x01\n\x02\x08\x10\n\x02\x08 \n\x02\x08 "
    b"Z\x1b\n\x01w\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x10\n\x02\x08\x10\n\x02\x08\x03\n\x02\x08\x03"
    b"b\x1b\n\x01y\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x01\n\x02\x08\x10\n\x02\x08 \n\x02\x08 "
    b"B\x04\n\x00\x10\r"
)
_TINY_FEEDS = {"x": np.ones((1, 16, 32, 32), np.float32), "w": np.ones((16, 16, 3, 3), np.float32)}


def watch(request: Mapping[str, Any]) -> dict[str, Any]:
    """Open the model and run it with the engine already warm, and measure what both add.

    The feeds are given, or random ones of the given sizes are made. A run with random feeds may
    fail, and is limited to the memory that the machine has left: `run_error` has the reason.
    """
    _warm(request)
    answer = _watch_once(request)
    if any(
        name in OWN_PROVIDERS for name in answer["providers"]
    ):  # the model itself loaded an engine
        answer = _watch_once(request)
    return answer


def _watch_once(request: Mapping[str, Any]) -> dict[str, Any]:
    resident_memory.settle()
    before = resident_memory.resident()
    resident_memory.reset_peak()
    session = _open(request, request["options"])
    opening, held = resident_memory.most_resident(), resident_memory.resident()
    inputs = session.get_inputs()
    given = request["feeds"] if request["sizes"] is None else request["sizes"]
    answer = {
        "opening": opening - before,
        "held": held - before,
        "providers": session.get_providers(),
        "shapes": input_shapes([(arg.name, arg.type, arg.shape) for arg in inputs], given),
        "runs": [],
        "run_error": "",
    }
    if request["sizes"] is None:
        peaks = _run_often(session, request["feeds"], request["runs"])
        return {**answer, "runs": [peak - before for peak in peaks]}
    try:
        with resident_memory.limited_to_available():
            feeds = random_feeds(inputs, request["sizes"])
            resident_memory.give_back()
            before += resident_memory.resident() - held  # feeds do not count
            peaks = _run_often(session, feeds, request["runs"])
    except Exception as error:  # of the model with these feeds, or out of memory
        return {**answer, "run_error": f"{type(error).__name__}: {error}"}
    return {**answer, "runs": [peak - before for peak in peaks]}


def _open(request: Mapping[str, Any], options: SessionOptions) -> InferenceSession:
    return InferenceSession(
        request["path"], options, request["providers"], weights=request["weights"]
    )


def _warm(request: Mapping[str, Any]) -> None:
    session = InferenceSession(_TINY, request["options"], request["providers"])
    session.run(None, _TINY_FEEDS)


def _run_often(session: InferenceSession, feeds: Mapping[str, Any], runs: int) -> list[int]:
    """The peak of resident memory in each run; results are freed in between."""
    peaks = []
    for _ in range(runs):
        resident_memory.reset_peak()
        session.run(None, feeds)
        peaks.append(resident_memory.most_resident())
    return peaks


def main() -> None:
    request = pickle.load(sys.stdin.buffer)  # from the process that started this one
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # nothing else may write here
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        answer = watch(request)
    except Exception as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
