"""The head of an infer request: its URL and its headers."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import httptools

from onward.serving.http.http_response import choose_encoding

Headers = dict[bytes, bytes]  # names in lower case; the last one of a name counts

_INFER = re.compile(rb"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer/?")


@dataclass(frozen=True, slots=True)
class InferHead:
    """What URL and headers say about a request and its answer."""

    model: str
    version: str
    keep_alive: bool
    length: int | None  # of the body; None: chunked
    json_length: bytes | None = None
    encoding: bytes | None = None  # of the body
    answer_encoding: bytes | None = None
    confirms_keep_alive: bool = False  # clients of HTTP/1.0 wait for it
    authorization: bytes | None = None
    api_key: bytes | None = None
    request_id: bytes | None = None
    traceparent: bytes | None = None


def read_infer_head(
    target: tuple[str, str], headers: Headers, length: int | None, keep_alive: bool
) -> InferHead:
    encoding = headers.get(b"content-encoding")
    return InferHead(
        *target,
        keep_alive,
        length,
        headers.get(b"inference-header-content-length"),
        None if encoding == b"identity" else encoding,
        choose_encoding(headers.get(b"accept-encoding")),
        keep_alive and headers.get(b"connection", b"").lower() == b"keep-alive",
        headers.get(b"authorization"),
        headers.get(b"x-api-key"),
        headers.get(b"x-request-id"),
        headers.get(b"traceparent"),
    )


@functools.lru_cache(1024)
def infer_target(url: bytes) -> tuple[str, str] | None:
    """The model and the version of an infer URL; None for another route."""
    path = httptools.parse_url(url).path
    match = _INFER.fullmatch(path) if path else None
    if match is None:
        return None
    model, version = match.group(1), match.group(2) or b""
    return (
        unquote_to_bytes(model).decode("utf-8", "replace"),
        unquote_to_bytes(version).decode("utf-8", "replace"),
    )
