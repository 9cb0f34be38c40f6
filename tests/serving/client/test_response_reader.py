"""response_reader: responses in all the ways in which HTTP ends a body."""

from __future__ import annotations

import pytest

from onward.serving.client.client_protocol import HttpRequest, HttpResponse
from onward.serving.client.response_reader import Want, read_response, request_head
from onward.serving.client.server_choice import parse_url


def read(data: bytes) -> tuple[HttpResponse, bool]:
    """Read a response from bytes, which must be used up."""
    reading = read_response()
    want = next(reading)
    while True:
        if isinstance(want, int):
            size = want
        elif want is Want.UNTIL_END:
            size = len(data)
        else:
            size = data.index(want.value) + len(want.value)
        part, data = data[:size], data[size:]
        try:
            want = reading.send(part)
        except StopIteration as end:
            assert not data
            found: tuple[HttpResponse, bool] = end.value
            return found


def test_a_body_with_a_length() -> None:
    response, keeps = read(b"HTTP/1.1 200 OK\r\nContent-LENGTH: 3\r\nX: a: b \r\n\r\nabc")
    assert (response.status, bytes(response.body), keeps) == (200, b"abc", True)
    assert response.headers == {"content-length": "3", "x": "a: b"}


def test_chunks() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    response, keeps = read(head + b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n")
    assert bytes(response.body) == b"abc0123456789" and keeps


def test_a_body_until_the_end() -> None:
    response, keeps = read(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert bytes(response.body) == b"abc" and not keeps


def test_a_closed_connection_is_not_kept() -> None:
    assert not read(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")[1]
    assert read(b"HTTP/1.1 204 No Content\r\n\r\n")[1]


def test_100_continue_is_skipped() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    assert read(data)[0].status == 404


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"],
)  # fmt: skip
def test_what_is_not_http_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an HTTP response|not a length|invalid literal"):
        read(data)


def test_a_request_head() -> None:
    request = HttpRequest("POST", "/v2", (b"ab", memoryview(b"c")), (("A", "b"),))
    head = request_head(request, parse_url("http://[::1]:80/p"), "Key: 1\r\n")
    assert head == (
        b"POST /p/v2 HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 3\r\nA: b\r\nKey: 1\r\n\r\n"
    )
