"""The few parts of protobuf's wire format that a load test needs, without a protobuf runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def bytes_field(number: int, data: bytes) -> bytes:
    """A field of bytes, text or a message.

    >>> bytes_field(1, b"ab")
    b'\\n\\x02ab'
    """
    return varint(number << 3 | 2) + varint(len(data)) + data


def packed_field(number: int, numbers: Iterable[int]) -> bytes:
    """A repeated field of integers."""
    return bytes_field(number, b"".join(map(varint, numbers)))


def varint(number: int) -> bytes:
    """
    >>> varint(300)
    b'\\xac\\x02'
    """
    number &= (1 << 64) - 1
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, with integers or bytes.

    >>> list(fields(bytes_field(1, b"ab") + varint(2 << 3) + varint(300)))
    [(1, b'ab'), (2, 300)]
    """
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == 0:
            number, at = _read_varint(message, at)
            yield key >> 3, number
            continue
        size, at = _read_varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        yield key >> 3, message[at : at + size]
        at += size


def integers(data: bytes) -> list[int]:
    """The numbers of a packed field, as int64.

    >>> integers(varint(-1) + varint(4))
    [-1, 4]
    """
    found, at = [], 0
    while at < len(data):
        number, at = _read_varint(data, at)
        found.append(number - (1 << 64) if number >> 63 else number)
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
