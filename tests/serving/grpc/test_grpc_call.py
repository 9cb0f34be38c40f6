"""Calls of gRPC on a stream: framing, compression, deadlines and statuses."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import pytest

from onward.errors import RequestInvalid
from onward.serving.grpc.grpc_call import GrpcCall, GrpcMethod
from onward.serving.grpc.http2_headers import HeaderDecoder
from tests.serving.grpc_client import run


class FakeStream:
    """Records what a call writes."""

    def __init__(self) -> None:
        self.written: list[tuple[bytes, bytes, bytes]] = []
        self.resumed = 0

    def write(self, headers: bytes, data: bytes = b"", trailers: bytes = b"") -> None:
        self.written.append((headers, data, trailers))

    def resume(self) -> None:
        self.resumed += 1

    def status(self) -> tuple[int, str]:
        """The status and text that ended the call."""
        *_, (_, _, trailers) = self.written
        found = dict(HeaderDecoder(16_384).decode(trailers))
        return int(found[b"grpc-status"]), found.get(b"grpc-message", b"").decode()


class Messages:
    """Collects the messages of a call."""

    is_full = False

    def __init__(self, call: GrpcCall) -> None:
        self.found: list[bytes] = []
        self.has_ended = False

    def receive(self, message: bytes) -> None:
        self.found.append(message)

    def end(self) -> None:
        self.has_ended = True


def call_of(method: GrpcMethod, **headers: bytes) -> tuple[GrpcCall, FakeStream]:
    stream = FakeStream()
    given: Any = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return GrpcCall(stream, given, method, 1000), stream  # type: ignore[arg-type]


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


ECHO = GrpcMethod(answer=lambda call, message: call.answer(bytes(message)[::-1]))


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_message_in_pieces(size: int) -> None:
    call, stream = call_of(ECHO)
    data = prefixed(b"abc" * 100)
    for i in range(0, len(data), size):
        call.receive(data[i : i + size])
    call.end()
    [(_, sent, _)] = stream.written
    assert sent == prefixed(b"cba" * 100)
    assert stream.status() == (0, "")


@pytest.mark.parametrize(
    ("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)]
)
def test_compressed_messages(encoding: bytes, compress: Any) -> None:
    call, stream = call_of(ECHO, grpc_encoding=encoding)
    call.receive(prefixed(compress(b"abc"), 1))
    call.end()
    assert stream.written[0][1] == prefixed(b"cba")


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b"", 3, "exactly one message"),
        (b"\0\0", 3, "exactly one message"),
        (prefixed(b"abc")[:-1], 3, "exactly one message"),
        (prefixed(b"abc") * 2, 3, "exactly one message"),
        (prefixed(bytes(1001)), 8, "1,001 bytes, the server accepts 1,000"),
        (b"\0\xff\xff\xff\xff", 8, "the server accepts 1,000"),
        (prefixed(b"junk", 1), 3, "cannot be decompressed"),
        (prefixed(gzip.compress(bytes(5000), mtime=0), 1), 8, "the server accepts 1,000"),
        (prefixed(gzip.compress(b"abcdef" * 20, mtime=0)[:-9], 1), 3, "incomplete"),
        (prefixed(gzip.compress(b"abc") + b"more", 1), 3, "bytes after its end"),
    ],
)
def test_messages_that_are_refused(data: bytes, status: int, text: str) -> None:
    call, stream = call_of(ECHO, grpc_encoding=b"gzip")
    call.receive(data)
    call.end()
    assert len(stream.written) == 1
    found = stream.status()
    assert found[0] == status
    assert text in found[1]


def test_an_unknown_compression_is_refused() -> None:
    call, stream = call_of(ECHO, grpc_encoding=b"snappy")
    call.receive(prefixed(b"abc", 1))
    call.end()
    assert stream.status()[0] == 12


def test_several_messages() -> None:
    call, stream = call_of(GrpcMethod(open=Messages))
    receiver: Any = call._receiver
    data = prefixed(b"a") + prefixed(b"") + prefixed(b"ccc")
    call.receive(data[:8])
    call.receive(data[8:])
    assert receiver.found == [b"a", b"", b"ccc"]
    call.send(b"1")
    call.send(b"2")
    call.end()
    assert receiver.has_ended
    call.finish()
    assert [bool(headers) for headers, *_ in stream.written] == [True, False, False]
    assert stream.status() == (0, "")
    call.fail(RequestInvalid("late"))
    assert len(stream.written) == 3


class LimitedMessages(Messages):
    """Takes two messages, until some are taken away."""

    @property
    def is_full(self) -> bool:  # type: ignore[override]
        return len(self.found) >= 2


def test_messages_wait_while_the_receiver_is_full() -> None:
    opened: list[LimitedMessages] = []

    def open_messages(call: GrpcCall) -> LimitedMessages:
        opened.append(LimitedMessages(call))
        return opened[0]

    call, stream = call_of(GrpcMethod(open=open_messages))
    receiver = opened[0]
    texts = [b"%d" % i for i in range(7)]
    data = b"".join(map(prefixed, texts))
    call.receive(data[:23])  # it ends within a message
    call.receive(data[23:])
    call.end()
    found: list[bytes] = []
    while receiver.found:
        assert len(receiver.found) <= 2
        found += [bytes(each) for each in receiver.found]
        receiver.found.clear()
        call.resume()
    assert found == texts
    assert receiver.has_ended and stream.resumed


def test_a_message_that_is_cut_off_ends_a_call_that_was_full() -> None:
    opened: list[LimitedMessages] = []

    def open_messages(call: GrpcCall) -> LimitedMessages:
        opened.append(LimitedMessages(call))
        return opened[0]

    call, stream = call_of(GrpcMethod(open=open_messages))
    call.receive(b"".join(map(prefixed, [b"a", b"b", b"c"]))[:-1])
    call.end()
    assert len(opened[0].found) == 2 and not stream.written
    opened[0].found.clear()
    call.resume()
    assert "incomplete" in stream.status()[1]


def test_a_message_that_is_cut_off_ends_the_call() -> None:
    call, stream = call_of(GrpcMethod(open=Messages))
    call.receive(prefixed(b"abc")[:6])
    call.end()
    assert stream.status() == (3, "the last message is incomplete")


def test_texts_of_errors_are_encoded() -> None:
    call, stream = call_of(ECHO)
    call.fail(RequestInvalid("100% é\nnext"))
    assert stream.status() == (3, "100%25 %C3%A9%0Anext")


def test_a_deadline_cancels_the_call() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()
        method = GrpcMethod(answer=lambda call, message: None)
        call, stream = call_of(method, grpc_timeout=b"1m")
        call.on_cancel = cancelled.set
        call.receive(prefixed(b""))
        call.end()
        await cancelled.wait()
        assert stream.status() == (4, "Deadline Exceeded")
        call.answer(b"late")
        assert len(stream.written) == 1

    run(main())


def test_a_malformed_deadline_has_passed() -> None:
    async def main() -> None:
        cancelled = asyncio.Event()
        call, _ = call_of(GrpcMethod(answer=lambda call, message: None), grpc_timeout=b"soon")
        call.on_cancel = cancelled.set
        await cancelled.wait()

    run(main())


def test_a_cancelled_call_is_not_answered() -> None:
    events: list[str] = []
    call, stream = call_of(GrpcMethod(answer=lambda call, message: None))
    call.on_cancel = lambda: events.append("cancel")
    call.cancel()
    call.cancel()
    call.answer(b"late")
    assert events == ["cancel"]
    assert stream.written == []
