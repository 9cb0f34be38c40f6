"""The body of one HTTP request, collected from the pieces that arrive."""

from __future__ import annotations

import numpy as np

from onward.errors import RequestTooLarge

_ALIGNMENT = 64


class RequestBody:
    """Joins pieces. `expected`: the length of the body, None if it is not known.

    `json_length`: where the tensors start. They are placed at an address that engines can read.
    """

    __slots__ = ("_at", "_buffer", "_expected", "_json_length", "_limit", "_parts", "size")

    def __init__(self, expected: int | None, limit: int, json_length: int = 0) -> None:
        self._expected = expected
        self._limit = limit
        self._json_length = json_length
        self._parts: list[bytes] = []
        self._buffer: memoryview | None = None
        self._at = 0
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        check_length(self.size, self._limit)
        if self._expected is None:
            self._parts.append(data)
            return
        if self._buffer is None:
            # np.empty: a false Content-Length costs no memory until the bytes arrive.
            self._at = -self._json_length % _ALIGNMENT
            self._buffer = np.empty(self._at + self._expected, np.uint8).data
        self._buffer[self._at : self._at + len(data)] = data
        self._at += len(data)

    def take(self) -> bytes | memoryview:
        """The whole body."""
        if self._buffer is not None:
            return self._buffer[self._at - self.size : self._at]
        return b"".join(self._parts)


def check_length(length: int, limit: int) -> None:
    if length > limit:
        raise RequestTooLarge(
            f"the request has more than {limit:,} bytes\nraise max_body_bytes, or send less at once"
        )
