"""Errors as gRPC reports them: a status code, a text, and when to try again."""

from __future__ import annotations

import logging
import math

from google.protobuf.message import DecodeError

from onward.errors import FeedError, OnwardError, ServingError

_LOG = logging.getLogger(__name__)
_NAMES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS "
    "PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE "
    "UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
)
CODES = {name: number for number, name in enumerate(_NAMES.split())}


def status_of(error: Exception) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    """The code, the text and the trailing metadata of an error."""
    text = str(error) or type(error).__name__
    if isinstance(error, ServingError):
        return CODES[error.grpc_code], text, _retry_metadata(error.retry_after)
    if isinstance(error, DecodeError):
        return CODES["INVALID_ARGUMENT"], "the message is not what the method takes", ()
    if isinstance(error, FeedError):
        return CODES["INVALID_ARGUMENT"], text, ()
    if isinstance(error, OnwardError):
        return CODES["INTERNAL"], text, ()
    _LOG.error("a gRPC request failed", exc_info=error)
    return CODES["INTERNAL"], f"internal error: {type(error).__name__}", ()


def _retry_metadata(seconds: float | None) -> tuple[tuple[str, str], ...]:
    """`retry-after` as in HTTP, and the same for gRPC's own retries."""
    if seconds is None:
        return ()
    return (
        ("retry-after", str(math.ceil(seconds))),
        ("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),
    )
