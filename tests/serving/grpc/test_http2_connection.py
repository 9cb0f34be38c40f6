"""Frames of HTTP/2 on a connection without a socket: limits, windows, and clients that err."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from onward.serving.grpc import http2_connection
from onward.serving.grpc import http2_frames as h2
from onward.serving.grpc.http2_connection import Http2Connection
from onward.serving.grpc.http2_headers import Header, encode_headers
from onward.serving.grpc.http2_sender import FrameSender
from onward.serving.grpc.http2_stream import Stream

HEADERS = encode_headers([(b":path", b"/a/b")])
OK = encode_headers([(b"grpc-status", b"0")])


class Transport:
    """Collects what is written."""

    def __init__(self) -> None:
        self.data = b""
        self.is_closed = False
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.data += data

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("10.0.0.1", 4711) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.is_closed = True

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of the frames since the last call."""
        data, self.data = self.data, b""
        found = []
        while data:
            length, kind, flags, stream = h2.read_head(data, 0)
            found.append((kind, flags, stream, data[9 : 9 + length]))
            data = data[9 + length :]
        return found


class Handler:
    """Collects what a stream receives."""

    def __init__(self, stream: Stream, headers: list[Header]) -> None:
        self.stream, self.headers = stream, headers
        self.data = b""
        self.pieces: list[bytes | memoryview] = []
        self.events: list[str] = []
        self.is_full = False

    def receive(self, data: bytes | memoryview) -> None:
        self.pieces.append(data)
        self.data += bytes(data)

    def end(self) -> None:
        self.events.append("end")

    def cancel(self) -> None:
        self.events.append("cancel")


class Peer:
    """A connection, its transport and the handlers of its streams."""

    def __init__(self, settings: dict[int, int] | None = None, allows: bool = True) -> None:
        self.transport = Transport()
        self.handlers: list[Handler] = []
        self.closed = 0
        self.connection = Http2Connection(
            self._open, lambda: 7.0, lambda _: allows, lambda _: self._close()
        )
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        if allows:
            self.feed(h2.PREFACE + h2.settings_frame(settings or {}))
            self.transport.frames()

    def _open(self, stream: Stream, headers: list[Header]) -> Handler:
        self.handlers.append(Handler(stream, headers))
        return self.handlers[-1]

    def _close(self) -> None:
        self.closed += 1

    def feed(self, data: bytes) -> None:
        self.connection.data_received(data)

    def frame(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self.feed(h2.frame_head(kind, flags, stream, len(payload)) + payload)

    def open(self, stream: int = 1, flags: int = h2.END_HEADERS) -> Handler:
        self.frame(h2.HEADERS, flags, stream, HEADERS)
        return self.handlers[-1]

    def error(self) -> int:
        """The code of the GOAWAY that closed the connection."""
        *_, (kind, _, _, payload) = self.transport.frames()
        assert kind == h2.GOAWAY
        assert self.transport.is_closed
        return h2.read_number(payload, 4)


def test_the_preface_is_answered_with_settings() -> None:
    peer = Peer()
    data = h2.PREFACE + h2.settings_frame({})
    fresh = Http2Connection(peer._open, lambda: 0.0, lambda _: True, lambda _: None)
    transport = Transport()
    fresh.connection_made(transport)  # type: ignore[arg-type]
    for i in range(len(data)):  # byte by byte
        fresh.data_received(data[i : i + 1])
    kinds = [(kind, flags) for kind, flags, *_ in transport.frames()]
    assert kinds == [(h2.SETTINGS, 0), (h2.WINDOW_UPDATE, 0), (h2.SETTINGS, h2.ACK)]


def test_http_1_is_refused() -> None:
    peer = Peer(allows=True)
    fresh = Http2Connection(peer._open, lambda: 0.0, lambda _: True, lambda _: None)
    transport = Transport()
    fresh.connection_made(transport)  # type: ignore[arg-type]
    fresh.data_received(b"GET / HTTP/1.1\r\n")
    head, body = bytes(transport.data).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert "speaks gRPC over HTTP/2" in json.loads(body)["error"]
    assert transport.is_closed


def test_other_protocols_are_refused() -> None:
    peer = Peer(allows=True)
    fresh = Http2Connection(peer._open, lambda: 0.0, lambda _: True, lambda _: None)
    transport = Transport()
    fresh.connection_made(transport)  # type: ignore[arg-type]
    fresh.data_received(b"\x16\x03\x01")
    assert [frame[0] for frame in transport.frames()] == [h2.GOAWAY]
    assert transport.is_closed


def test_a_client_that_has_made_no_call_is_asked_to_leave_after_its_first() -> None:
    peer = Peer()
    peer.connection.stop()
    assert peer.transport.frames() == []
    handler = peer.open(1, h2.END_HEADERS | h2.END_STREAM)
    goaway, ping = peer.transport.frames()
    assert (goaway[0], ping[0]) == (h2.GOAWAY, h2.PING)
    peer.frame(h2.PING, h2.ACK, 0, ping[3])
    handler.stream.write(HEADERS, b"answer", OK)
    assert peer.transport.is_closed


def test_a_client_that_makes_no_call_is_asked_to_leave_at_last() -> None:
    peer = Peer()
    peer.connection.stop()
    peer.connection.stop_silent()
    assert [frame[0] for frame in peer.transport.frames()] == [h2.GOAWAY, h2.PING]
    fresh = Http2Connection(peer._open, lambda: 0.0, lambda _: True, lambda _: None)
    transport = Transport()
    fresh.connection_made(transport)  # type: ignore[arg-type]
    fresh.stop()
    assert not transport.is_closed
    fresh.stop_silent()
    assert transport.is_closed


def test_a_connection_over_the_limit_is_closed() -> None:
    assert Peer(allows=False).transport.is_closed


def test_a_stream_is_received_and_answered() -> None:
    peer = Peer()
    handler = peer.open()
    peer.frame(h2.DATA, 0, 1, b"abc")
    peer.frame(h2.DATA, h2.END_STREAM, 1, b"d")
    assert (handler.headers, handler.data) == ([(b":path", b"/a/b")], b"abcd")
    assert handler.events == ["end"]
    handler.stream.write(HEADERS, b"answer", OK)
    assert peer.transport.frames() == [
        (h2.HEADERS, h2.END_HEADERS, 1, HEADERS),
        (h2.DATA, 0, 1, b"answer"),
        (h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, OK),
    ]
    assert peer.connection.streams == {}
    handler.stream.write(b"", b"late", OK)
    assert peer.transport.frames() == []


def test_data_is_not_copied() -> None:
    peer = Peer()
    handler = peer.open()
    frame = h2.frame_head(h2.DATA, 0, 1, 10_000) + bytes(range(250)) * 40
    received = frame * 3
    peer.feed(received[:12_000])  # the second frame is cut
    peer.feed(rest := received[12_000:])
    assert handler.data == bytes(range(250)) * 120
    shared = [np.shares_memory(np.frombuffer(piece, np.uint8), np.frombuffer(rest, np.uint8))
              for piece in handler.pieces]  # fmt: skip
    assert shared == [False, False, True]  # the one that was cut is joined, nothing else


@pytest.mark.parametrize("size", [1, 7, 8, 9, 10, 11, 300])
def test_frames_may_be_cut_anywhere(size: int) -> None:
    peer = Peer()
    frames = h2.frame_head(h2.HEADERS, h2.END_HEADERS, 1, len(HEADERS)) + HEADERS
    for part in (b"", b"a" * 100, b"b", b"c" * 250):
        frames += h2.frame_head(h2.DATA, 0, 1, len(part)) + part
    frames += h2.frame_head(h2.PING, 0, 0, 8) + bytes(8) + h2.frame_head(h2.DATA, 1, 1, 1) + b"d"
    for at in range(0, len(frames), size):
        peer.feed(frames[at : at + size])
    [handler] = peer.handlers
    assert handler.data == b"a" * 100 + b"b" + b"c" * 250 + b"d"
    assert handler.events == ["end"]
    assert [kind for kind, *_ in peer.transport.frames()] == [h2.PING]


def test_an_answer_before_the_end_of_the_request_resets_the_stream() -> None:
    peer = Peer()
    handler = peer.open()
    handler.stream.write(b"", b"", OK)
    *_, (kind, _, stream, payload) = peer.transport.frames()
    assert (kind, stream, h2.read_number(payload)) == (h2.RST_STREAM, 1, h2.NO_ERROR)
    peer.frame(h2.DATA, h2.END_STREAM, 1, b"late")
    assert not peer.transport.is_closed


def test_padding_priority_and_continuation() -> None:
    peer = Peer()
    payload = b"\x02" + b"\0\0\0\0\x10" + HEADERS[:3] + b"\0\0"
    flags = h2.PADDED | h2.HAS_PRIORITY
    peer.frame(h2.HEADERS, flags, 1, payload)
    assert peer.handlers == []
    peer.frame(h2.CONTINUATION, 0, 1, HEADERS[3:5])
    peer.frame(h2.CONTINUATION, h2.END_HEADERS, 1, HEADERS[5:])
    peer.frame(h2.DATA, h2.PADDED | h2.END_STREAM, 1, b"\x03abc\0\0\0")
    peer.frame(h2.PRIORITY, 0, 1, b"\0\0\0\0\x10")
    peer.frame(0x77, 0, 1, b"unknown")
    [handler] = peer.handlers
    assert (handler.headers, handler.data, handler.events) == (
        [(b":path", b"/a/b")],
        b"abc",
        ["end"],
    )


def test_trailers_of_a_request_end_it() -> None:
    peer = Peer()
    handler = peer.open()
    peer.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, OK)
    assert handler.events == ["end"]
    assert len(peer.handlers) == 1


def test_data_is_sent_within_the_windows() -> None:
    peer = Peer({h2.INITIAL_WINDOW: 10})
    handler = peer.open(flags=h2.END_HEADERS | h2.END_STREAM)
    handler.stream.write(HEADERS, b"x" * 25, OK)

    def sent() -> int:
        return sum(len(payload) for kind, *_, payload in peer.transport.frames() if kind == h2.DATA)

    assert sent() == 10
    peer.feed(h2.window_frame(1, 4))
    assert sent() == 4
    peer.feed(h2.settings_frame({h2.INITIAL_WINDOW: 12}))
    assert sent() == 2
    peer.connection.pause_writing()
    peer.feed(h2.window_frame(1, 100))
    assert sent() == 0
    peer.connection.resume_writing()
    assert sent() == 9
    assert peer.connection.streams == {}


def test_the_window_of_the_connection_is_shared() -> None:
    peer = Peer({h2.INITIAL_WINDOW: 1 << 20})
    for stream in (1, 3):
        handler = peer.open(stream, h2.END_HEADERS | h2.END_STREAM)
        handler.stream.write(HEADERS, bytes(50_000), OK)
    frames = peer.transport.frames()
    assert sum(len(payload) for kind, *_, payload in frames if kind == h2.DATA) == 65_535
    assert max(len(payload) for *_, payload in frames) == h2.DEFAULT_FRAME
    peer.feed(h2.window_frame(0, 50_000))
    assert peer.connection.streams == {}


@pytest.mark.parametrize(("window", "offers"), [(0, 0), (1 << 20, 1)])
def test_a_window_that_opens_by_bytes_is_not_offered_to_every_stream(
    monkeypatch: pytest.MonkeyPatch, window: int, offers: int
) -> None:
    peer = Peer({h2.INITIAL_WINDOW: window})
    for id in range(1, 100, 2):
        peer.open(id).stream.write(OK, bytes(80 << 10), OK)
    offered: list[int] = []
    add_stream = FrameSender.add_stream

    def count(self: FrameSender, stream: Stream) -> bool:
        offered.append(stream.id)
        return add_stream(self, stream)

    monkeypatch.setattr(FrameSender, "add_stream", count)
    peer.feed(h2.window_frame(0, 1))
    assert len(offered) == offers


def test_large_frames_are_sent_if_the_client_takes_them() -> None:
    peer = Peer({h2.INITIAL_WINDOW: 1 << 20, h2.MAX_FRAME: 40_000})
    handler = peer.open(flags=h2.END_HEADERS | h2.END_STREAM)
    handler.stream.write(HEADERS, bytes(50_000), OK)
    sizes = [len(payload) for kind, *_, payload in peer.transport.frames() if kind == h2.DATA]
    assert sizes == [40_000, 10_000]


def test_the_client_may_send_again_what_was_received() -> None:
    peer = Peer()
    handler = peer.open()
    chunk = bytes(h2.DEFAULT_FRAME)
    count = http2_connection.STREAM_WINDOW // 2 // len(chunk)
    for _ in range(count):
        peer.frame(h2.DATA, 0, 1, chunk)
    [(kind, _, stream, payload)] = peer.transport.frames()
    assert (kind, stream, h2.read_number(payload)) == (h2.WINDOW_UPDATE, 1, count * len(chunk))
    handler.is_full = True
    for _ in range(2 * count):
        peer.frame(h2.DATA, 0, 1, chunk)
    frames = peer.transport.frames()
    assert [stream for _, _, stream, _ in frames] == [0] * len(frames)  # of the connection only
    handler.is_full = False
    handler.stream.resume()
    [(_, _, stream, payload)] = peer.transport.frames()
    assert (stream, h2.read_number(payload)) == (1, 2 * count * len(chunk))
    handler.is_full = True
    for _ in range(2 * count + 1):
        peer.frame(h2.DATA, 0, 1, chunk)
    assert peer.error() == h2.FLOW_CONTROL_ERROR


@pytest.mark.integration
def test_pings_are_answered_unless_the_answers_are_not_read() -> None:
    peer = Peer()
    peer.frame(h2.PING, 0, 0, b"12345678")
    assert peer.transport.frames() == [(h2.PING, h2.ACK, 0, b"12345678")]
    peer.transport.unsent = 5 << 20  # an answer that the client is still reading is no reason
    peer.frame(h2.PING, 0, 0, b"12345678")
    assert peer.transport.frames() == [(h2.PING, h2.ACK, 0, b"12345678")]
    ping = h2.frame_head(h2.PING, 0, 0, 8) + b"12345678"
    peer.feed(ping * ((1 << 20) // len(ping) + 1))
    assert peer.error() == h2.ENHANCE_YOUR_CALM


def test_a_reset_cancels_its_stream() -> None:
    peer = Peer()
    handler = peer.open()
    peer.feed(h2.reset_frame(1, h2.CANCEL))
    assert handler.events == ["cancel"]
    handler.stream.write(HEADERS, b"late", OK)
    assert peer.transport.frames() == []


def test_too_many_resets_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "MAX_RESETS", 3)
    peer = Peer()
    for i in range(4):
        peer.open(2 * i + 1)
        peer.feed(h2.reset_frame(2 * i + 1, h2.CANCEL))
    assert peer.error() == h2.ENHANCE_YOUR_CALM


def test_a_stream_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_connection, "MAX_STREAMS", 1)
    peer = Peer()
    peer.open(1)
    peer.open(3)
    assert len(peer.handlers) == 1
    [(kind, _, stream, payload)] = peer.transport.frames()
    assert (kind, stream, h2.read_number(payload)) == (h2.RST_STREAM, 3, h2.REFUSED_STREAM)


def test_a_lost_connection_cancels_its_streams() -> None:
    peer = Peer()
    first, second = peer.open(1), peer.open(3)
    peer.connection.connection_lost(None)
    assert first.events == second.events == ["cancel"]
    assert peer.closed == 1
    first.stream.write(HEADERS, b"late", OK)


def test_stopping_waits_for_streams_that_are_on_their_way() -> None:
    peer = Peer()
    first = peer.open(1, h2.END_HEADERS | h2.END_STREAM)
    peer.connection.stop()
    goaway, ping = peer.transport.frames()
    assert (goaway[0], h2.read_number(goaway[3])) == (h2.GOAWAY, h2.LAST_STREAM)
    second = peer.open(3, h2.END_HEADERS | h2.END_STREAM)  # sent before GOAWAY arrived
    peer.frame(h2.PING, h2.ACK, 0, ping[3])
    [(kind, _, _, payload)] = peer.transport.frames()
    assert (kind, h2.read_number(payload)) == (h2.GOAWAY, 3)
    peer.open(5)
    assert len(peer.handlers) == 2
    for handler in (first, second):
        assert not peer.transport.is_closed
        handler.stream.write(HEADERS, b"answer", OK)
    assert peer.transport.is_closed


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([(h2.DATA, 0, 1, b"x")], h2.PROTOCOL_ERROR),
        ([(h2.DATA, 0, 0, b"x")], h2.PROTOCOL_ERROR),
        ([(h2.HEADERS, h2.END_HEADERS, 2, HEADERS)], h2.PROTOCOL_ERROR),
        ([(h2.HEADERS, 0, 1, HEADERS), (h2.PING, 0, 0, bytes(8))], h2.PROTOCOL_ERROR),
        ([(h2.HEADERS, 0, 1, b""), (h2.CONTINUATION, 4, 3, b"")], h2.PROTOCOL_ERROR),
        ([(h2.CONTINUATION, 4, 1, HEADERS)], h2.PROTOCOL_ERROR),
        ([(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff")], h2.COMPRESSION_ERROR),
        ([(h2.HEADERS, 12, 1, b"\x09a")], h2.PROTOCOL_ERROR),
        ([(h2.HEADERS, 4, 1, HEADERS)] * 2, h2.PROTOCOL_ERROR),
        ([(h2.HEADERS, 5, 1, HEADERS), (h2.DATA, 0, 1, b"x")], h2.STREAM_CLOSED),
        ([(h2.HEADERS, 0, 1, bytes(9000)), *[(9, 0, 1, bytes(16000))] * 4], h2.ENHANCE_YOUR_CALM),
        ([(h2.PING, 0, 0, b"short")], h2.PROTOCOL_ERROR),
        ([(h2.SETTINGS, 0, 0, b"12345")], h2.FRAME_SIZE_ERROR),
        ([(h2.SETTINGS, 0, 1, b"")], h2.PROTOCOL_ERROR),
        ([(h2.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff")], h2.FLOW_CONTROL_ERROR),
        ([(h2.SETTINGS, 0, 0, b"\0\5\0\0\0\1")], h2.PROTOCOL_ERROR),
        ([(h2.WINDOW_UPDATE, 0, 0, bytes(4))], h2.PROTOCOL_ERROR),
        ([(h2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff")], h2.FLOW_CONTROL_ERROR),
        ([(h2.WINDOW_UPDATE, 0, 0, b"")], h2.FRAME_SIZE_ERROR),
        ([(h2.RST_STREAM, 0, 1, b"")], h2.FRAME_SIZE_ERROR),
        ([(h2.PUSH_PROMISE, 0, 1, b"")], h2.PROTOCOL_ERROR),
        ([(h2.DATA, 0, 1, bytes(16_385))], h2.FRAME_SIZE_ERROR),
    ],
)
def test_violations_end_the_connection(frames: list[Any], code: int) -> None:
    peer = Peer()
    for each in frames:
        peer.frame(*each)
    assert peer.error() == code


def test_random_frames_raise_nothing() -> None:
    source = random.Random(0)
    for _ in range(300):
        peer = Peer()
        for _ in range(40):
            payload = source.choice([HEADERS, source.randbytes(source.randint(0, 40)), bytes(4)])
            flags = source.choice([0, 1, 4, 5, source.randrange(256)])
            peer.frame(source.randrange(11), flags, source.choice([0, 1, 3, 5, 7]), payload)
            for handler in peer.handlers:
                if source.random() < 0.1:
                    handler.stream.write(HEADERS, source.randbytes(30), OK)
            if peer.transport.is_closed:
                break
        peer.connection.connection_lost(None)
        assert all(handler.events.count("cancel") <= 1 for handler in peer.handlers)
