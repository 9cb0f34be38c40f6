"""The sending side of an HTTP/2 connection: frames within the windows that the client opened."""

from __future__ import annotations

import asyncio

from onward.serving.grpc import http2_frames as h2
from onward.serving.grpc.http2_frames import Http2Error
from onward.serving.grpc.http2_stream import Stream

_MAX_FRAME = 1 << 20  # of ours, if the client takes larger ones
_MAX_UNSENT = 1 << 20  # answers to pings and settings that a client does not read


class FrameSender:
    """Frames that wait to be written, and what the client allows."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.can_write = True
        self.stream_window = h2.DEFAULT_WINDOW  # of new streams
        self._window = h2.DEFAULT_WINDOW
        self._max_frame = h2.DEFAULT_FRAME
        self._out: list[bytes | memoryview] = []
        self._answered = 0  # bytes of answers since the client had read everything

    @property
    def has_window(self) -> bool:
        """Whether the connection can take data of any stream now."""
        return self.can_write and self._window > 0

    def add(self, frame: bytes) -> None:
        """Queue a frame that no window limits."""
        self._out.append(frame)

    def answer(self, frame: bytes) -> None:
        """Queue a frame that the client can ask for as often as it likes."""
        if not self.transport.get_write_buffer_size():
            self._answered = 0
        self._answered += len(frame)
        if self._answered > _MAX_UNSENT:
            raise Http2Error(h2.ENHANCE_YOUR_CALM, "answers are not read")
        self._out.append(frame)

    def flush(self) -> None:
        """Write the frames that are queued."""
        if self._out:
            self.transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            self._out.clear()

    def add_stream(self, stream: Stream) -> bool:
        """Queue what a stream may send now; whether that was all of it."""
        out, id = self._out, stream.id
        if stream.headers:
            out.append(h2.frame_head(h2.HEADERS, h2.END_HEADERS, id, len(stream.headers)))
            out.append(stream.headers)
            stream.headers = b""
        parts = stream.parts
        while parts and self.can_write:
            part = parts[0]
            size = min(len(part), self._window, stream.window, self._max_frame)
            if size <= 0:
                return False
            out.append(h2.frame_head(h2.DATA, 0, id, size))
            out.append(part if size == len(part) else part[:size])
            self._window -= size
            stream.window -= size
            if size == len(part):
                parts.popleft()
            else:
                parts[0] = part[size:]
        if parts or not stream.trailers:
            return False
        flags = h2.END_HEADERS | h2.END_STREAM
        out.append(h2.frame_head(h2.HEADERS, flags, id, len(stream.trailers)))
        out.append(stream.trailers)
        stream.trailers = b""
        return True

    def open_window(self, stream: Stream | None, more: int) -> None:
        """The client takes more bytes of a stream, or of the connection."""
        if not more:
            raise Http2Error(h2.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if stream is None:
            self._window += more
        else:
            stream.window += more
        if max(self._window, 0 if stream is None else stream.window) > h2.LAST_STREAM:
            raise Http2Error(h2.FLOW_CONTROL_ERROR, "the window is too large")

    def apply_settings(self, payload: bytes, streams: dict[int, Stream]) -> None:
        """The client's settings change the windows of its streams too."""
        for setting, value in h2.read_settings(payload):
            if setting == h2.INITIAL_WINDOW:
                if value > h2.LAST_STREAM:
                    raise Http2Error(h2.FLOW_CONTROL_ERROR, "the window is too large")
                for stream in streams.values():
                    stream.window += value - self.stream_window
                self.stream_window = value
            elif setting == h2.MAX_FRAME:
                if not h2.DEFAULT_FRAME <= value < 1 << 24:
                    raise Http2Error(h2.PROTOCOL_ERROR, "the size of frames is out of bounds")
                self._max_frame = min(value, _MAX_FRAME)
