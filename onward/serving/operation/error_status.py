"""The HTTP status of an error, as metrics and logs count it."""

from __future__ import annotations

from onward.errors import FeedError, ServingError


def status_of(error: Exception | None) -> int:
    """
    >>> status_of(None), status_of(FeedError("x")), status_of(OSError())
    (200, 400, 500)
    """
    if error is None:
        return 200
    if isinstance(error, ServingError):
        return error.status
    return 400 if isinstance(error, FeedError) else 500
