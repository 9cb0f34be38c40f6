"""HPACK (RFC 7541): header blocks of HTTP/2. Requests are decoded, responses encoded.

decoder = HeaderDecoder(16384)
decoder.decode(block) -> [(b":path", b"/service/method"), ...]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from onward.serving.grpc.http2_huffman import decode_huffman

Header = tuple[bytes, bytes]

_VALUES = {
    b":method": b"GET POST",
    b":path": b"/ /index.html",
    b":scheme": b"http https",
    b":status": b"200 204 206 304 400 404 500",
}
_NAMES = (
    ":authority :method :path :scheme :status accept-charset accept-encoding accept-language "
    "accept-ranges accept access-control-allow-origin age allow authorization cache-control "
    "content-disposition content-encoding content-language content-length content-location "
    "content-range content-type cookie date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified link location "
    "max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after server "
    "set-cookie strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)
STATIC_TABLE: list[Header] = [
    (name, value)
    for name in _NAMES.encode().split()
    for value in _VALUES.get(name, b"").split() or [b""]
]
STATIC_TABLE[15] = (b"accept-encoding", b"gzip, deflate")
_TABLE_BYTES = 4096  # of the dynamic table, unless settings say otherwise: ours never do
_MAX_CACHED, _LONGEST_CACHED = 64, 4096  # blocks of a connection, and bytes of one


class HeaderDecoder:
    """Decodes the blocks of one connection, in their order. ValueError: the connection is lost."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._table: deque[Header] = deque()
        self._size = 0
        self._limit = _TABLE_BYTES
        # A block that changed nothing gives the same headers until the table changes.
        self._cache: dict[bytes, list[Header]] = {}

    def decode(self, block: bytes) -> list[Header]:
        """The headers of a block, as a list that is not to be changed."""
        found = self._cache.get(block)
        if found is not None:
            return found
        found, is_cacheable = self._decode(block)
        if is_cacheable and len(block) <= _LONGEST_CACHED and len(self._cache) < _MAX_CACHED:
            self._cache[block] = found
        return found

    def _decode(self, block: bytes) -> tuple[list[Header], bool]:
        headers: list[Header] = []
        at, size, is_cacheable = 0, 0, True
        while at < len(block):
            byte = block[at]
            if byte & 0x80:
                index, at = _integer(block, at, 7)
                header = self._entry(index)
            elif byte & 0xE0 == 0x20:
                limit, at = _integer(block, at, 5)
                if limit > _TABLE_BYTES or headers:
                    raise ValueError("a header block resizes the table beyond its limit")
                self._limit = limit
                self._evict()
                is_cacheable = False
                continue
            else:
                is_indexed = bool(byte & 0x40)
                header, at = self._literal(block, at, 6 if is_indexed else 4)
                if is_indexed:
                    self._add(header)
                    is_cacheable = False
            size += len(header[0]) + len(header[1]) + 32
            if size > self._max_bytes:
                raise ValueError(f"a header block has more than {self._max_bytes:,} bytes")
            headers.append(header)
        return headers, is_cacheable

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Header, int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _entry(self, index: int) -> Header:
        if not 0 < index <= len(STATIC_TABLE) + len(self._table):
            raise ValueError("a header block refers to an entry that is not there")
        if index <= len(STATIC_TABLE):
            return STATIC_TABLE[index - 1]
        return self._table[index - len(STATIC_TABLE) - 1]

    def _add(self, header: Header) -> None:
        self._table.appendleft(header)
        self._size += _entry_size(header)
        self._evict()

    def _evict(self) -> None:
        self._cache.clear()
        while self._size > self._limit:
            self._size -= _entry_size(self._table.pop())


def encode_headers(headers: Iterable[Header]) -> bytes:
    """A block of literals, which no table remembers."""
    parts: list[bytes] = []
    for name, value in headers:
        parts += (b"\0", _length(len(name)), name, _length(len(value)), value)
    return b"".join(parts)


def _entry_size(header: Header) -> int:
    return len(header[0]) + len(header[1]) + 32


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number with a prefix of some bits, and the position behind it."""
    most = (1 << bits) - 1
    if at >= len(block):
        raise ValueError("a header block is cut off")
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 28, 7):
        if at >= len(block):
            raise ValueError("a header block is cut off")
        byte = block[at]
        at += 1
        value += (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of a header block is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    if at >= len(block):
        raise ValueError("a header block is cut off")
    is_huffman = block[at] & 0x80
    length, at = _integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise ValueError("a header block is cut off")
    data = block[at:end]
    return (decode_huffman(data) if is_huffman else data), end


def _length(number: int) -> bytes:
    if number < 127:
        return bytes((number,))
    parts = bytearray((127,))
    number -= 127
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
