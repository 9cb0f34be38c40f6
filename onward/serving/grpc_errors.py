"""Errors as gRPC reports them: a status code, a text, and when to try again."""

from __future__ import annotations

import logging
import math
from typing import Any, NoReturn

import grpc

from onward.errors import FeedError, OnwardError, ServingError

_LOG = logging.getLogger(__name__)


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """The code, the text and the trailing metadata of an error."""
    text = str(error) or type(error).__name__
    if isinstance(error, ServingError):
        return grpc.StatusCode[error.grpc_code], text, _retry_metadata(error.retry_after)
    if isinstance(error, FeedError):
        return grpc.StatusCode.INVALID_ARGUMENT, text, ()
    if isinstance(error, OnwardError):
        return grpc.StatusCode.INTERNAL, text, ()
    _LOG.error("a gRPC request failed", exc_info=error)
    return grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}", ()


async def abort(context: Any, error: Exception) -> NoReturn:
    """End a call with an error's status."""
    code, text, metadata = status_of(error)
    await context.abort(code, text, metadata)
    raise AssertionError("abort returned")


def _retry_metadata(seconds: float | None) -> tuple[tuple[str, str], ...]:
    """`retry-after` as in HTTP, and the same for gRPC's own retries."""
    if seconds is None:
        return ()
    return (
        ("retry-after", str(math.ceil(seconds))),
        ("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),
    )
