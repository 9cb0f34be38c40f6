"""Frames of HTTP/2 (RFC 9113): kinds, flags, errors, and how they are written."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, TypeVar

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY = range(8)
WINDOW_UPDATE, CONTINUATION = 8, 9
ACK, END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32

# Settings
MAX_STREAMS, INITIAL_WINDOW, MAX_FRAME, MAX_HEADERS = 3, 4, 5, 6
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384
LAST_STREAM = (1 << 31) - 1

# Errors
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL = 5, 6, 7, 8
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11

P = TypeVar("P", bytes, memoryview)

_HEAD = struct.Struct(">HBBBI")
_NUMBER = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class Http2Error(Exception):
    """A violation that ends the connection, with its error code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code: Final = code


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    """The 9 bytes in front of a frame's payload."""
    return _HEAD.pack(length >> 8, length & 255, kind, flags, stream)


def read_head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Length, kind, flags and stream of a frame."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream & LAST_STREAM


def missing_bytes(start: bytes) -> int:
    """How many bytes the first frame lacks; 0: its head is not whole, so it is not known."""
    if len(start) < HEAD_BYTES:
        return 0
    return HEAD_BYTES + read_head(start, 0)[0] - len(start)


def settings_frame(values: Mapping[int, int]) -> bytes:
    payload = b"".join(_SETTING.pack(*each) for each in values.items())
    return frame_head(SETTINGS, 0, 0, len(payload)) + payload


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Settings in the order of the frame."""
    if len(payload) % _SETTING.size:
        raise Http2Error(FRAME_SIZE_ERROR, "SETTINGS has a part of a setting")
    return list(_SETTING.iter_unpack(payload))


def window_frame(stream: int, more: int) -> bytes:
    return frame_head(WINDOW_UPDATE, 0, stream, 4) + _NUMBER.pack(more)


def reset_frame(stream: int, code: int) -> bytes:
    return frame_head(RST_STREAM, 0, stream, 4) + _NUMBER.pack(code)


def goaway_frame(last: int, code: int, text: str = "") -> bytes:
    payload = _NUMBER.pack(last) + _NUMBER.pack(code) + text.encode()
    return frame_head(GOAWAY, 0, 0, len(payload)) + payload


def read_number(payload: bytes, at: int = 0) -> int:
    """Four bytes of a payload."""
    if len(payload) < at + 4:
        raise Http2Error(FRAME_SIZE_ERROR, "a frame is too short")
    found: int = _NUMBER.unpack_from(payload, at)[0]
    return found


def without_padding(payload: P, flags: int) -> P:
    """The payload of DATA or HEADERS without its padding."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
