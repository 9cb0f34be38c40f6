"""The child of onward profile: measures, and tells its parent in lines of JSON how far it is."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import OnwardError
from onward.measure.profile.report import profile_model
from onward.sessions.feed_files import read_feeds

_TOLD_EVERY = 0.1  # seconds


def work(request: Mapping[str, Any]) -> dict[str, Any]:
    """The child's part: profile, write the files, and return the figures."""

    def feeds(inputs: Sequence[Any]) -> dict[str, Any]:
        return read_feeds(inputs, request["feeds"], request["sizes"], request["seed"])

    names = [name for name, _ in request["providers"]]
    first, last = request["between"]
    found = profile_model(
        request["model"],
        feeds,
        providers="auto" if names == ["auto"] else request["providers"] or None,
        threads=request["threads"],
        iterations=request["iterations"],
        warm_up=request["warm_up"],
        between=(first, last),
        fresh=request["fresh"],
        progress=_Teller().tell,
    )
    if request["trace"] is not None:
        found.save_trace(request["trace"])
    if request["page"] is not None:
        found.save_page(request["page"])
    return found.to_json()


class _Teller:
    """Tells the parent how far it is, not more often than anyone can see."""

    def __init__(self) -> None:
        self._doing, self._next = "", 0.0

    def tell(self, doing: str, part: float) -> None:
        now = time.monotonic()
        if doing != self._doing or now >= self._next:
            self._doing, self._next = doing, now + _TOLD_EVERY
            _say({"doing": doing, "part": part})


def _say(told: Mapping[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            _say(work(json.loads(sys.argv[1])))
        except (OnwardError, OSError) as problem:
            _say({"error": str(problem)})
