"""The child process of onward profile: measures a model, and reports its progress."""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Sequence
from typing import Any

from onward.measure.profile.report import profile_model
from onward.sessions.feed_files import read_feeds
from onward.workers.request_loop import Request, serve

_REPORT_INTERVAL = 0.1  # seconds


def profile(request: Request) -> tuple[dict[str, Any], list[Any]]:
    """Profile the model, write the files, and return the figures; an interrupt ends it early."""
    header = request.header

    def feeds(inputs: Sequence[Any]) -> dict[str, Any]:
        return read_feeds(inputs, header["feeds"], header["sizes"], header["seed"])

    names = [name for name, _ in header["providers"]]
    first, last = header["between"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    request.on_interrupt(_thread.interrupt_main)
    found = profile_model(
        header["model"],
        feeds,
        providers="auto" if names == ["auto"] else header["providers"] or None,
        threads=header["threads"],
        iterations=header["iterations"],
        warm_up=header["warm_up"],
        between=(first, last),
        fresh=header["fresh"],
        progress=_Reporter(request).report,
    )
    if header["trace"] is not None:
        found.save_trace(header["trace"])
    if header["page"] is not None:
        found.save_page(header["page"])
    return found.to_json(), []


class _Reporter:
    """Sends progress when the step changes, and otherwise at most ten times a second."""

    def __init__(self, request: Request) -> None:
        self._request, self._doing, self._next = request, "", 0.0

    def report(self, doing: str, part: float) -> None:
        now = time.monotonic()
        if doing != self._doing or now >= self._next:
            self._doing, self._next = doing, now + _REPORT_INTERVAL
            self._request.send_progress(doing=doing, part=part)


if __name__ == "__main__":
    serve({"profile": profile})
