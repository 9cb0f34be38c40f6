"""HTTP/1.1 on the client's side, without I/O: heads to bytes, bytes to responses.

reading = read_response()
want = next(reading)             # UNTIL_BLANK, UNTIL_LINE, a number of bytes, or UNTIL_END
want = reading.send(data)        # StopIteration.value: (HttpResponse, whether it may be reused)
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum

from onward.serving.client.client_protocol import HttpRequest, HttpResponse
from onward.serving.client.server_choice import ServerEndpoint

MAX_HEAD = 64 << 10
MAX_CHUNK = 1 << 31


class Want(Enum):
    """How much to read: up to and with an empty line, up to and with a line's end, or all."""

    UNTIL_BLANK = b"\r\n\r\n"
    UNTIL_LINE = b"\r\n"
    UNTIL_END = b""


Reading = Generator[Want | int, bytes | bytearray, tuple[HttpResponse, bool]]


def request_head(request: HttpRequest, server: ServerEndpoint, fixed_headers: str) -> bytes:
    """The first line and the headers of a request; `fixed_headers` end with a line's end."""
    size = sum(map(len, request.body))
    host = f"[{server.host}]" if ":" in server.host else server.host
    lines = [
        f"{request.method} {server.prefix}{request.path} HTTP/1.1\r\nHost: {host}:{server.port}\r\n"
    ]
    if request.body or request.method == "POST":
        lines.append(f"Content-Length: {size}\r\n")
    lines += [f"{name}: {value}\r\n" for name, value in request.headers]
    return f"{''.join(lines)}{fixed_headers}\r\n".encode("latin-1")


def read_response() -> Reading:
    """Read one response. ValueError: it is not HTTP."""
    status, headers, keeps = 100, dict[str, str](), True
    while status < 200:  # 100 Continue and the like come before the response itself
        head = yield Want.UNTIL_BLANK
        status, headers, keeps = _parse_head(bytes(head))
    if status in (204, 304):
        return HttpResponse(status, headers, b""), keeps
    body: bytes | bytearray
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = yield from _read_chunks()
    elif "content-length" in headers:
        size = _size(headers["content-length"], 10)
        body = (yield size) if size else b""
    else:
        body, keeps = (yield Want.UNTIL_END), False
    return HttpResponse(status, headers, body), keeps


def _parse_head(head: bytes) -> tuple[int, dict[str, str], bool]:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"not an HTTP response: {lines[0][:80]!r}")
    headers = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    keeps = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
    return int(rest[:3]), headers, keeps


def _read_chunks() -> Generator[Want | int, bytes | bytearray, bytearray]:
    body = bytearray()
    while True:
        line = yield Want.UNTIL_LINE
        size = _size(bytes(line).split(b";")[0].strip().decode("latin-1"), 16)
        if size == 0:
            break
        body += (yield size + 2)[:-2]
    while bytes((yield Want.UNTIL_LINE)) != b"\r\n":  # trailers
        pass
    return body


def _size(text: str, base: int) -> int:
    size = int(text, base)
    if not 0 <= size < MAX_CHUNK << 8:
        raise ValueError(f"not a length: {text!r}")
    return size
