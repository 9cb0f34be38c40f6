"""The child process that opens and runs a model, and measures the memory that both add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.graph.random_feeds import input_shapes, random_feeds
from onward.measure.memory import resident_memory
from onward.providers.choose import OWN_PROVIDERS
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession
from onward.workers import messages
from onward.workers.option_messages import unpack_options
from onward.workers.request_loop import Request, serve

# y = Conv(x, w), padded, 16 channels of 32 x 32: small, but with work for every thread.
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
    """What to measure: a model, and its feeds or the sizes of random ones."""

    path: str
    providers: Any
    weights: str | None
    options: SessionOptions
    sizes: dict[str, int] | None
    feeds: dict[str, Any]
    runs: int


def measure(request: Request) -> tuple[dict[str, Any], list[Any]]:
    """Open the model and run it, the engine already loaded: bytes more than before.

    A run with random feeds may fail, and is limited to the memory that the machine has left:
    `run_error` has the reason.
    """
    subject = _read(request)
    with InferenceSession(_TINY, subject.options, subject.providers) as session:
        session.run(None, _TINY_FEEDS)  # loads the engine
    answer = _measure_once(subject)
    if any(
        name in OWN_PROVIDERS for name in answer["providers"]
    ):  # the model itself loaded an engine
        answer = _measure_once(subject)
    return answer, []


def _read(request: Request) -> _Subject:
    header, buffers = request.header, request.buffers
    options = unpack_options(header["options"], buffers)
    feeds = {name: messages.unpack(packed, buffers) for name, packed in header["feeds"]}
    path, providers, weights = header["path"], header["providers"], header["weights"]
    return _Subject(path, providers, weights, options, header["sizes"], feeds, header["runs"])


def _measure_once(subject: _Subject) -> dict[str, Any]:
    resident_memory.settle()
    before = resident_memory.resident()
    resident_memory.reset_peak()
    session = InferenceSession(
        subject.path, subject.options, subject.providers, weights=subject.weights
    )
    opening, held = resident_memory.most_resident(), resident_memory.resident()
    inputs = session.get_inputs()
    given = subject.feeds if subject.sizes is None else subject.sizes
    answer = {
        "opening": opening - before,
        "held": held - before,
        "providers": session.get_providers(),
        "shapes": input_shapes([(arg.name, arg.type, arg.shape) for arg in inputs], given),
        "runs": [],
        "run_error": "",
    }
    if subject.sizes is None:
        peaks = _run_often(session, subject.feeds, subject.runs)
        return {**answer, "runs": [peak - before for peak in peaks]}
    try:
        with resident_memory.limited_to_available():
            feeds = random_feeds(inputs, subject.sizes)
            resident_memory.release_free_memory()
            before += resident_memory.resident() - held  # feeds do not count
            peaks = _run_often(session, feeds, subject.runs)
    except Exception as error:  # of the model with these feeds, or out of memory
        return {**answer, "run_error": f"{type(error).__name__}: {error}"}
    return {**answer, "runs": [peak - before for peak in peaks]}


def _run_often(session: InferenceSession, feeds: Mapping[str, Any], runs: int) -> list[int]:
    """The peak of resident memory in each run; results are freed in between."""
    peaks = []
    for _ in range(runs):
        resident_memory.reset_peak()
        session.run(None, feeds)
        peaks.append(resident_memory.most_resident())
    return peaks


if __name__ == "__main__":
    serve({"measure": measure})
