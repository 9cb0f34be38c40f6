"""The child process that opens and runs a model, and measures its own memory meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.measure.memory import resident_memory
from onward.providers.choose import OURS
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession
from onward.workers import messages
from onward.workers.option_messages import unpack_options
from onward.workers.serve import Request, serve

# y = Conv(x, w), padded, 16 channels of 32 x 32: small, but every thread has some of it to do.
_TINY = (
    b'\x08\x07:~\n"\n\x01x\n\x01w\x12\x01y"\x04Conv*\x11\n\x04pads@\x01@\x01@\x01@\x01\xa0\x01\x07\x12\x01g'
    b"Z\x1b\n\x01x\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x01\n\x02\x08\x10\n\x02\x08 \n\x02\x08 "
    b"Z\x1b\n\x01w\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x10\n\x02\x08\x10\n\x02\x08\x03\n\x02\x08\x03"
    b"b\x1b\n\x01y\x12\x16\n\x14\x08\x01\x12\x10\n\x02\x08\x01\n\x02\x08\x10\n\x02\x08 \n\x02\x08 "
    b"B\x04\n\x00\x10\r"
)
_TINY_FEEDS = {"x": np.ones((1, 16, 32, 32), np.float32), "w": np.ones((16, 16, 3, 3), np.float32)}


@dataclass(frozen=True)
class _Subject:
    """What to measure."""

    path: str
    providers: Any
    weights: str | None
    options: SessionOptions
    writing: SessionOptions | None  # options that save the optimized model, for another opening
    feeds: dict[str, Any]
    runs: int

    def open(self, options: SessionOptions) -> InferenceSession:
        return InferenceSession(self.path, options, self.providers, weights=self.weights)


def measure(request: Request) -> tuple[dict[str, Any], list[Any]]:
    """Open the model and run it, the engine already loaded: bytes more than before."""
    subject = _read(request)
    with InferenceSession(_TINY, subject.options, subject.providers) as session:
        session.run(None, _TINY_FEEDS)  # loads the engine
    answer = _measure_once(subject)
    if any(name in OURS for name in answer["providers"]):  # the model itself loaded an engine
        answer = _measure_once(subject)
    if subject.writing is not None:
        subject.open(subject.writing)
    return answer, []


def _read(request: Request) -> _Subject:
    header, buffers = request.header, request.buffers
    options = unpack_options(header["options"], buffers)
    writing = None if header["writing"] is None else unpack_options(header["writing"], buffers)
    feeds = {name: messages.unpack(packed, buffers) for name, packed in header["feeds"]}
    path, providers, weights = header["path"], header["providers"], header["weights"]
    return _Subject(path, providers, weights, options, writing, feeds, header["runs"])


def _measure_once(subject: _Subject) -> dict[str, Any]:
    resident_memory.settle()
    before = resident_memory.resident()
    resident_memory.reset_peak()
    session = subject.open(subject.options)
    answer = {
        "opening": resident_memory.most_resident() - before,
        "held": resident_memory.resident() - before,
        "providers": session.get_providers(),
        "whole": session._plan.native is not None,
        "inputs": [[arg.name, arg.type, list(arg.shape)] for arg in session.get_inputs()],
    }
    resident_memory.reset_peak()
    answer["runs"] = [peak - before for peak in _run_often(session, subject)]
    return answer


def _run_often(session: InferenceSession, subject: _Subject) -> list[int]:
    """The peak memory of each run; its results are released before the next."""
    peaks = []
    for _ in range(subject.runs):
        session.run(None, subject.feeds)
        peaks.append(resident_memory.most_resident())
        resident_memory.reset_peak()
    return peaks


if __name__ == "__main__":
    serve({"measure": measure})
