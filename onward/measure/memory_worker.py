"""The child that opens and runs a model, and says what that took of its memory."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from onward.measure.memory import resident_memory
from onward.providers.choose import OURS
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession
from onward.sessions.ort_plan import Whole

# y = Conv(x, w), padded, 16 channels of 32 x 32: small, but every thread has some of it to do.
_TINY = (
    b'\x08\x07:~\n"\n\x01x\n\x01w\x12\x01y"\x04Conv*\x11\n\x04pads@\x01@\x01@\x01@\x01\xa0\x01\x07\x12\x01g'
    b"Z\x1b\n\x01x\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x01\n\x02\x08\x10\n\x02\x08 \n\x02\x08 "
    b"Z\x1b\n\x01w\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x10\n\x02\x08\x10\n\x02\x08\x03\n\x02\x08\x03"
    b"b\x1b\n\x01y\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x01\n\x02\x08\x10\n\x02\x08 \n\x02\x08 "
    b"B\x04\n\x00\x10\r"
)
_TINY_FEEDS = {"x": np.ones((1, 16, 32, 32), np.float32), "w": np.ones((16, 16, 3, 3), np.float32)}


def watch(request: Mapping[str, Any]) -> dict[str, Any]:
    """Open the model and run it with the engine already warm: bytes more than before."""
    _warm(request)
    answer = _watch_once(request)
    if any(name in OURS for name in answer["providers"]):  # the model itself loaded an engine
        answer = _watch_once(request)
    if request["writing"] is not None:
        _open(request, request["writing"])
    return answer


def _watch_once(request: Mapping[str, Any]) -> dict[str, Any]:
    resident_memory.settle()
    before = resident_memory.resident()
    resident_memory.reset_peak()
    session = _open(request, request["options"])
    answer = {
        "opening": resident_memory.most_resident() - before,
        "held": resident_memory.resident() - before,
        "providers": session.get_providers(),
        "whole": isinstance(session._plan, Whole),
        "inputs": [[arg.name, arg.type, list(arg.shape)] for arg in session.get_inputs()],
    }
    resident_memory.reset_peak()
    answer["runs"] = [peak - before for peak in _run_often(session, request)]
    return answer


def _open(request: Mapping[str, Any], options: SessionOptions) -> InferenceSession:
    return InferenceSession(
        request["path"], options, request["providers"], weights=request["weights"]
    )


def _warm(request: Mapping[str, Any]) -> None:
    session = InferenceSession(_TINY, request["options"], request["providers"])
    session.run(None, _TINY_FEEDS)


def _run_often(session: InferenceSession, request: Mapping[str, Any]) -> list[int]:
    """The most that was resident in each run; results are let go of in between."""
    peaks = []
    for _ in range(request["runs"]):
        session.run(None, request["feeds"])
        peaks.append(resident_memory.most_resident())
        resident_memory.reset_peak()
    return peaks


def main() -> None:
    request = pickle.load(sys.stdin.buffer)  # from the process that started this one
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # nobody else may write on this line
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        answer = watch(request)
    except Exception as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
