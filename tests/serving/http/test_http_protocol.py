"""http_protocol: what happens on a connection, seen from a socket."""

from __future__ import annotations

import gzip
import logging
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from tests.serving.http_fakes import GUARD, Running, floats, running

BODY = orjson.dumps({"inputs": [floats([1, 2, 3, 4])]})
DOUBLED = [2, 4, 6, 8]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(max_body_bytes=1 << 20, header_timeout=30) as found:
        yield found


def post(body: bytes = BODY, model: str = "double", headers: str = "", length: int = -1) -> bytes:
    length = len(body) if length < 0 else length
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n"
        f"{headers}\r\n"
    ).encode() + body


def read_answer(stream: socket.socket, left: bytearray | None = None) -> tuple[int, bytes, bytes]:
    """Status, head and body of the next answer."""
    data = left if left is not None else bytearray()
    while b"\r\n\r\n" not in data:
        more = stream.recv(65536)
        if not more:
            raise EOFError(bytes(data))
        data += more
    end = data.index(b"\r\n\r\n") + 4
    head = bytes(data[:end])
    found = re.search(rb"\r\ncontent-length: (\d+)\r\n", head, re.IGNORECASE)
    length = int(found[1]) if found else 0
    while len(data) < end + length:
        data += stream.recv(65536)
    body = bytes(data[end : end + length])
    del data[: end + length]
    return int(head.split()[1]), head, body


def exchange(server: Running, data: bytes) -> tuple[int, bytes, bytes, bool]:
    """Send bytes; the answer, and whether the server closed the connection after it."""
    with server.socket() as stream:
        stream.sendall(data)
        status, head, body = read_answer(stream)
        is_closed = b"connection: close" in head.lower() and stream.recv(1) == b""
        return status, head, body, is_closed


def error(body: bytes) -> str:
    text: str = orjson.loads(body)["error"]
    return text


def outputs(body: bytes) -> list[float]:
    found: list[float] = orjson.loads(body)["outputs"][0]["data"]
    return found


def is_alive(server: Running) -> bool:
    return outputs(exchange(server, post())[2]) == DOUBLED


def test_spaces_around_the_value_of_a_header_are_left_out(server: Running) -> None:
    headers = (
        f"Inference-Header-Content-Length: \t{len(BODY)} \t\r\nContent-Encoding: identity \r\n"
    )
    status, _, body, _ = exchange(server, post(headers=headers))
    assert (status, outputs(body)) == (200, DOUBLED)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "speaks HTTP/1.1, not HTTP/2"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "speaks HTTP without TLS"),
        (b"hello\r\n\r\n", "not a valid HTTP request"),
    ],
)
def test_other_protocols_are_named(server: Running, data: bytes, text: str) -> None:
    status, _, body, is_closed = exchange(server, data)
    assert (status, is_closed) == (400, True)
    assert text in error(body)


def test_requests_of_one_connection_are_answered_in_order(server: Running) -> None:
    with server.socket() as stream:
        for _ in range(3):
            stream.sendall(post())
            assert outputs(read_answer(stream)[2]) == DOUBLED


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    left = bytearray()
    count = 300
    with server.socket() as stream:
        requests = b""
        for index in range(count):
            body = orjson.dumps({"id": str(index), "inputs": [floats([1, 2, 3, 4])]})
            requests += post(body) + b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n" * (
                index % 50 == 0
            )
        stream.sendall(requests)
        for index in range(count):
            assert orjson.loads(read_answer(stream, left)[2])["id"] == str(index)
            if index % 50 == 0:
                assert read_answer(stream, left)[2] == b'{"live":true}'


def test_heads_that_were_seen_before_are_not_mistaken(server: Running) -> None:
    index = b"POST /v2/repository/index HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    other = orjson.dumps({"id": "9", "inputs": [floats([4, 3, 2, 1])]})
    sent = [index + post(), post(), index, post(other), post(), post(model="echo"), index, post()]
    left = bytearray()
    with server.socket() as stream:
        for _ in range(2):
            for data in sent:
                stream.sendall(data)
                if index in data:
                    assert orjson.loads(read_answer(stream, left)[2])[0]["name"] == "double"
                if data != index:
                    found = orjson.loads(read_answer(stream, left)[2])
                    assert (found["model_name"] == "echo") is (b"/echo/" in data)
                    assert (found.get("id") == "9") is (other in data)


def test_a_body_may_arrive_in_pieces(server: Running) -> None:
    array = np.arange(4096, dtype=np.float32)
    head = orjson.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [4096],
                 "parameters": {"binary_data_size": array.nbytes}}
            ],
            "parameters": {"binary_data_output": True},
        }
    )  # fmt: skip
    data = post(head + array.tobytes(), "echo", f"Inference-Header-Content-Length: {len(head)}\r\n")
    with server.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(data), 1777):
            stream.sendall(data[start : start + 1777])
            server.call(lambda: None)  # the server's loop turns
        status, answer, body = read_answer(stream)
    assert status == 200
    assert b"application/octet-stream" in answer
    length = int(answer.split(b"Inference-Header-Content-Length: ")[1].split(b"\r\n")[0])
    assert np.frombuffer(body[length:], np.float32).tolist() == array.tolist()
    assert server.core.requests[-1].inputs["x"].flags.aligned


def test_a_chunked_body_is_read(server: Running) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:9], BODY[9:]))
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert outputs(exchange(server, head + chunks + b"0\r\n\r\n")[2]) == DOUBLED


def test_a_compressed_body_is_read(server: Running) -> None:
    data = post(gzip.compress(BODY), headers="Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\n")
    _, head, body, _ = exchange(server, data)
    assert b"Content-Encoding: gzip" in head
    assert outputs(gzip.decompress(body)) == DOUBLED


def test_a_large_json_body_is_read_and_written_in_a_thread(server: Running) -> None:
    count = 150_000
    tensor = {"name": "x", "datatype": "UINT8", "shape": [count], "data": [1] * count}
    body = exchange(server, post(orjson.dumps({"inputs": [tensor]}), "echo"))[2]
    assert outputs(body) == [1] * count
    short = tensor | {"shape": [1]}
    status, _, body, _ = exchange(server, post(orjson.dumps({"inputs": [short]}), "echo"))
    assert (status, error(body)) == (400, "input 'x' got 150,000 elements, expected 1")


def test_a_client_that_waits_for_100_continue_gets_it(server: Running) -> None:
    data = post(headers="Expect: 100-continue\r\n")
    with server.socket() as stream:
        stream.sendall(data[: -len(BODY)])
        assert read_answer(stream)[0] == 100
        stream.sendall(BODY)
        assert outputs(read_answer(stream)[2]) == DOUBLED


def test_a_client_that_waits_for_100_continue_is_refused_before_it_sends(server: Running) -> None:
    status, _, body, is_closed = exchange(
        server, post(b"", headers="Expect: 100-continue\r\n", length=1 << 21)
    )
    assert (status, is_closed) == (413, True)
    assert "more than 1,048,576 bytes" in error(body)


def test_a_client_that_waits_with_a_wrong_method_gets_its_error(server: Running) -> None:
    data = post(headers="Expect: 100-continue\r\n").replace(b"POST", b"PUT")[: -len(BODY)]
    status, _, _, is_closed = exchange(server, data)
    assert (status, is_closed) == (405, True)


@pytest.mark.parametrize("ending", ["infer", "infer/", "infer?a=b", "versions/1/infer"])
def test_urls_of_infer(server: Running, ending: str) -> None:
    url = f"/v2/models/double/{ending}".encode()
    for prefix in (b"", b"http://host"):
        data = post().replace(b"/v2/models/double/infer", prefix + url)
        assert outputs(exchange(server, data)[2]) == DOUBLED


def test_names_of_models_are_unquoted(server: Running) -> None:
    assert exchange(server, post(model="a%20b"))[0] == 200
    status, _, body, _ = exchange(server, post(model="%ff%00"))
    assert (status, "unknown model" in error(body)) == (404, True)


def test_infer_is_a_post(server: Running) -> None:
    status, head, body, _ = exchange(server, b"GET /v2/models/double/infer HTTP/1.1\r\n\r\n")
    assert (status, error(body)) == (405, "Method Not Allowed")
    assert b"Allow: POST" in head


def test_http_1_0_is_answered_and_closed(server: Running) -> None:
    assert exchange(server, post().replace(b"HTTP/1.1", b"HTTP/1.0"))[3]
    kept = post(headers="Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0")
    status, head, _, is_closed = exchange(server, kept)
    assert (status, is_closed) == (200, False)
    assert b"Connection: keep-alive" in head


def test_connection_close_is_obeyed(server: Running) -> None:
    status, _, _, is_closed = exchange(server, post(headers="Connection: close\r\n") + post())
    assert (status, is_closed) == (200, True)


def test_a_request_for_http_2_is_answered_with_http_1(server: Running) -> None:
    headers = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
    data = post(headers=headers)
    with server.socket() as stream:
        for cut in (len(data), len(data) - 5):  # with the body at once, and in pieces
            stream.sendall(data[:cut])
            server.call(lambda: None)
            stream.sendall(data[cut:])
            assert outputs(read_answer(stream)[2]) == DOUBLED
        stream.sendall(post())
        assert outputs(read_answer(stream)[2]) == DOUBLED


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\n\r\n", 400),
        (post(headers="Content-Length: 1\r\n"), 400),
        (post(headers="Transfer-Encoding: chunked\r\n"), 400),
        (post(length=10**30), 400),
        (post(length=1 << 40), 413),
        (post(length=(1 << 20) + 1), 413),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /v2 HTTP/1.1\r\nA: " + b"a" * 400_000, 431),
        (b"GET /v2 HTTP/1.1\r\nA: " + b"a" * 66_000 + b"\r\n\r\n", 431),
        (b"GET /v2 HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    ],
)
def test_bytes_that_are_not_http_are_refused(server: Running, data: bytes, status: int) -> None:
    found, _, body, is_closed = exchange(server, data)
    assert (found, is_closed) == (status, True)
    assert error(body)
    assert is_alive(server)


def test_a_url_of_another_kind_is_refused(server: Running) -> None:
    status, _, body, _ = exchange(server, b"CONNECT a:1 HTTP/1.1\r\n\r\n")
    assert (status, error(body)) == (400, "the URL of the request is not valid")


def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(server: Running) -> None:
    head = b"POST /v2/models/double/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (1 << 16, bytes(1 << 16))
    assert exchange(server, head + chunk * 17)[0] == 413


def test_a_client_that_sends_too_much_reads_its_answer(server: Running) -> None:
    assert server.ask("POST", "/v2/models/double/infer", bytes(8 << 20))[0] == 413


def test_a_request_after_garbage_is_answered_before_the_garbage(server: Running) -> None:
    left = bytearray()
    with server.socket() as stream:
        stream.sendall(post() + b"garbage\r\n\r\n")
        assert read_answer(stream, left)[0] == 200
        assert read_answer(stream, left)[0] == 400


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "The document is empty"),
        (b"{", "failed to parse the request JSON buffer"),
        (b'{"inputs": 1}', "Unable to parse 'inputs'"),
    ],
)
def test_a_bad_request_is_refused_and_its_connection_kept(
    server: Running, body: bytes, text: str
) -> None:
    with server.socket() as stream:
        stream.sendall(post(body))
        status, _, answer = read_answer(stream)
        assert (status, text in error(answer)) == (400, True)
        stream.sendall(post())
        assert read_answer(stream)[0] == 200


def test_a_bug_is_a_500_without_details(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "onward.serving"):
        status, _, body, _ = exchange(server, post(model="bug"))
    assert (status, error(body)) == (500, "internal error of the server: KeyError")
    assert "secret" in caplog.text


def test_a_client_that_leaves_cancels_its_request() -> None:
    with running() as server:
        with server.socket() as stream:
            stream.sendall(post(model="hold"))
            assert server.core.arrived.wait(GUARD)
        until_half_closed(server)
        server.expire(2)  # it is asked whether it is there
        server.expire(4)
        assert server.core.cancelled.wait(GUARD)
        server.release()  # an answer that comes too late is dropped
        assert is_alive(server)


def until_half_closed(server: Running) -> None:
    """Wait until the server has seen the end of what the client of its only connection sends."""
    while not all(each._probe is not None for each in server.call(connections(server))):
        pass


def connections(server: Running) -> Callable[[], list[Any]]:
    return lambda: list(server.server._connections._open)


@pytest.mark.parametrize("path", ["/v2/models/double/infer", "/v2/health/live"])
def test_a_client_that_ends_its_half_of_the_connection_is_answered(
    server: Running, path: str
) -> None:
    with server.socket() as stream:
        method, body = (b"POST", BODY) if path.endswith("infer") else (b"GET", b"")
        head = b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
        stream.sendall(head % (method, path.encode(), len(body)) + body)
        stream.shutdown(socket.SHUT_WR)
        assert read_answer(stream)[0] == 200
        assert stream.recv(1) == b""


def test_a_slow_answer_reaches_a_client_that_ended_its_half_of_the_connection() -> None:
    with running() as server, server.socket() as stream:
        stream.sendall(post(model="hold") + post())
        assert server.core.arrived.wait(GUARD)
        stream.shutdown(socket.SHUT_WR)
        until_half_closed(server)
        left = bytearray()
        for seconds in (2, 4, 600):
            server.expire(seconds)
        assert not server.core.cancelled.is_set()
        server.release()
        assert [read_answer(stream, left)[0] for _ in range(3)] == [100, 200, 200]
        assert stream.recv(1) == b""


def test_a_request_that_ends_early_is_answered_with_the_reason(server: Running) -> None:
    for data in (post(length=len(BODY) + 1), b"GET /v2 HTTP/1.1\r\nHost:"):
        with server.socket() as stream:
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            status, _, body = read_answer(stream)
            assert status == 400
            assert error(body) == "the connection ended before the request was complete"
            assert stream.recv(1) == b""


def test_a_slow_sender_is_ended_and_others_are_not() -> None:
    with running(header_timeout=30) as server:
        with server.socket() as slow, server.socket() as silent, server.socket() as busy:
            slow.sendall(b"POST /v2/models/double/infer HTTP/1.1\r\nHost:")
            busy.sendall(post(model="hold"))
            assert server.core.arrived.wait(GUARD)
            server.expire(31)
            status, _, body = read_answer(slow)
            assert (status, error(body)) == (408, "the request did not arrive within 30 s")
            assert silent.recv(1) == b""
            server.expire(1000)
            server.release()
            assert read_answer(busy)[0] == 200
        assert is_alive(server)


def test_a_false_content_length_ends_in_a_timeout() -> None:
    with running(header_timeout=30) as server, server.socket() as stream:
        stream.sendall(post(length=len(BODY) + 1))
        server.call(lambda: None)
        assert is_alive(server)
        server.expire(31)
        assert read_answer(stream)[0] == 408


def test_an_idle_connection_is_closed() -> None:
    with running(header_timeout=5, keep_alive=60) as server, server.socket() as stream:
        stream.sendall(post())
        assert read_answer(stream)[0] == 200
        server.expire(59)
        stream.sendall(post())
        assert read_answer(stream)[0] == 200
        server.expire(61)
        assert stream.recv(1) == b""


def test_too_many_connections_are_refused() -> None:
    with running(max_connections=2) as server, server.socket() as one, server.socket() as two:
        for stream in (one, two):
            stream.sendall(post())
            assert read_answer(stream)[0] == 200
        status, head, body, is_closed = exchange(server, post())
        assert (status, error(body)) == (503, "the server has too many connections")
        assert b"Retry-After: 1" in head
        assert is_closed
        one.sendall(post())
        assert read_answer(one)[0] == 200


@pytest.mark.integration
def test_a_client_that_does_not_read_is_ended() -> None:
    with running(keep_alive=60) as server, server.socket() as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        tensor = {"name": "x", "datatype": "UINT8", "shape": [90_000], "data": [1] * 90_000}
        body = orjson.dumps({"inputs": [tensor]})
        stream.settimeout(1)
        try:
            for _ in range(400):
                stream.sendall(post(body, "echo"))
        except TimeoutError:
            pass  # the server no longer reads: it would have to keep the answers
        else:
            pytest.fail("the server reads although the client does not read its answers")
        assert is_alive(server)
        server.expire(61)
        stream.settimeout(GUARD)
        with pytest.raises((ConnectionError, EOFError)):
            while stream.recv(1 << 20):
                pass
            raise EOFError


def test_the_header_gives_the_id_of_a_request_that_has_none(server: Running) -> None:
    body = exchange(server, post(headers="X-Request-Id: header\r\n"))[2]
    assert orjson.loads(body)["id"] == "header"
    own = orjson.dumps({**orjson.loads(BODY), "id": "own"})
    body = exchange(server, post(own, headers="X-Request-Id: header\r\n"))[2]
    assert orjson.loads(body)["id"] == "own"


def test_a_request_has_the_trace_of_its_client(server: Running) -> None:
    exchange(server, post(headers="traceparent: 00-a-b-01\r\n"))
    assert server.core.requests[-1].traceparent == "00-a-b-01"
    exchange(server, post())
    assert server.core.requests[-1].traceparent == ""


def test_the_access_log_has_the_routes_that_ask_no_model(caplog: pytest.LogCaptureFixture) -> None:
    with running(access_log=True) as server, caplog.at_level(logging.INFO, "onward"):
        exchange(server, post())  # the core logs it
        server.ask("GET", "/v2/health/live")
    assert '"GET /v2/health/live HTTP/1.1" 200' in caplog.text
    assert "double" not in caplog.text


def test_requests_that_no_model_gets_are_counted() -> None:
    with running(api_keys=["k"], max_body_bytes=1000) as server:
        refused = server.core.refused
        key = "X-API-Key: k\r\n"
        path = "/v2/models/double/versions/1/infer"
        for data, name, version, text in (
            (post(b"{", headers=key), "double", "", "failed to parse the request JSON"),
            (post(), "double", "", "no valid API key"),
            (post(length=2000, headers=key), "double", "", "more than 1,000 bytes"),
            (post(headers=key + "Content-Encoding: br\r\n"), "double", "", "compression"),
            (f"GET {path} HTTP/1.1\r\n\r\n".encode(), "double", "1", "Method Not Allowed"),
        ):
            assert exchange(server, data)[0] >= 400
            [(found, found_version, error_text)] = refused
            assert (found, found_version) == (name, version)
            assert text in error_text
            refused.clear()
        assert exchange(server, post(headers=key))[0] == 200
        assert server.ask("GET", "/nope", headers={"X-API-Key": "k"})[0] == 404
        assert refused == []
