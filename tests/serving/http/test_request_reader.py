"""request_reader: heads and bodies of the bytes that a client sends, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import RequestTooLarge
from onward.serving.http.http_response import HttpError
from onward.serving.http.request_reader import RequestHead, RequestReader

POST = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"PUT /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
UPGRADE = b"POST /c HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi"
GET = b"GET /d HTTP/1.0\r\nX: 1\r\nx: 2 \r\n\r\n"


class Taken:
    """A connection that notes what it is given."""

    def __init__(self, keeps_body: bool = True) -> None:
        self.keeps_body = keeps_body
        self.heads: list[RequestHead] = []
        self.bodies: list[bytes] = []
        self.begun = self.piece_bytes = 0

    def request_begins(self) -> None:
        self.begun += 1

    def head_arrived(self, head: RequestHead) -> bool:
        self.heads.append(head)
        return self.keeps_body

    def piece_arrived(self, size: int) -> None:
        self.piece_bytes += size

    def request_arrived(self, body: bytes | memoryview) -> None:
        self.bodies.append(bytes(body))


def read(*data: bytes, limit: int = 1000) -> Taken:
    taken = Taken()
    reader = RequestReader(taken, limit)
    for each in data:
        reader.feed(each)
    return taken


@given(st.lists(st.integers(0, 300), max_size=6), st.permutations([POST, CHUNKED, UPGRADE]))
def test_requests_are_the_same_however_the_bytes_are_cut(
    cuts: list[int], requests: list[bytes]
) -> None:
    data, ends = b"".join(requests), sorted(cuts)
    taken = read(*[data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)])
    bodies = {b"/a": b"hello", b"/b": b"hello!", b"/c": b"hi"}
    assert [head.url for head in taken.heads] == [each.split()[1] for each in requests]
    assert taken.bodies == [bodies[head.url] for head in taken.heads]
    assert taken.begun == len(requests)


def test_the_head_of_a_request() -> None:
    (head,) = read(GET).heads
    assert (head.method, head.url, head.length) == (b"GET", b"/d", 0)
    assert (head.is_http_1_0, head.keep_alive, head.wants_upgrade) == (True, False, False)
    assert head.lines == [(b"x", b"1"), (b"x", b"2")]
    assert head.headers == {b"x": b"2"}
    assert not head.expects_continue


def test_a_body_that_is_not_wanted_is_dropped() -> None:
    taken = Taken(keeps_body=False)
    reader = RequestReader(taken, 1000)
    reader.feed(POST[:-2])
    reader.feed(POST[-2:])
    assert (taken.bodies, taken.piece_bytes) == ([b""], 5)
    assert not reader.is_reading


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", HttpError, "URL of the request is too"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 102, HttpError, "more than 100 headers"),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 70_000, HttpError, "headers of the request are too"),
        (POST.replace(b": 5", b": 5000"), RequestTooLarge, "more than 1,000 bytes"),
        (
            UPGRADE.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked"),
            HttpError,
            "upgrade",
        ),
        (CHUNKED.replace(b"chunked", b"gzip, chunked"), HttpError, "coding 'gzip, chunked' is not"),
        (b"nonsense", HttpError, "not a valid HTTP request"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        read(data)
