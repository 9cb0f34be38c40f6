"""The child process that measures a provider's ceilings, where no other engine's threads run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from onward.measure.profile.roofline import measure_ceilings
from onward.workers.request_loop import Request, serve


def measure(request: Request) -> tuple[dict[str, Any], list[Any]]:
    header = request.header
    found = measure_ceilings(
        header["provider"], header["options"], header["threads"], header["kinds"]
    )
    return asdict(found), []


if __name__ == "__main__":
    serve({"measure": measure})
