"""Read protobuf's wire format, as far as a scan of a model needs it: fields, numbers, text.

Without the protobuf library: skipped bytes cost nothing, so a scan costs by the field, not by the
byte. Bytes that break the format raise InvalidModel, never another exception.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from onward.errors import InvalidModel

Field = tuple[int, int, int]  # (tag, number, 0) of a number, (tag, start, end) of anything else

_LONGEST_VARINT = 10  # bytes
_SIZES = {1: 8, 5: 4}  # bytes of the fixed kinds
MOST_SINGLE = 64  # consecutive fields of one tag that are yielded one by one
RUN = 1 << 40  # marks many fields of one tag at once


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """The fields of the message between two offsets, in order; their content is not read.

    An unpacked list of numbers has a field for each; the rest of a long one comes at once, as
    (tag | RUN, start, end).

    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69]), 0, 7))
    [(8, 150, 0), (18, 5, 7)]
    """
    at = start
    previous = repeats = 0
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1, end)
        kind = tag & 7
        if tag < 8 or tag > 0xFFFFFFFF:
            raise _broken(at, "a field without a number")
        if kind == 2:
            if at < end and data[at] < 128:
                size = data[at]
                at += 1
            else:
                size, at = _varint(data, at, end)
            stop = at + size
            if stop > end:
                raise _broken(at, f"{size:,} bytes where {end - at:,} are left")
            yield tag, at, stop
            at = stop
            continue
        if kind == 0:
            value, at = _varint(data, at, end)
            yield tag, value, 0
        elif kind in _SIZES:
            stop = at + _SIZES[kind]
            if stop > end:
                raise _broken(at, "a number that is cut off")
            yield tag, at, stop
            at = stop
        else:
            raise _broken(at, f"a field of kind {kind}, which ONNX does not have")
        repeats = repeats + 1 if tag == previous else 0
        previous = tag
        if repeats > MOST_SINGLE and tag < 128:
            run = _run(tag).match(data, at, end)
            if run is not None and run.end() > at:
                yield tag | RUN, at, run.end()
                at = run.end()


@functools.cache
def _run(tag: int) -> re.Pattern[bytes]:
    """A pattern of any number of consecutive fields with this tag."""
    fixed = _SIZES.get(tag & 7)
    number = rb"[\x80-\xff]{0,9}[\x00-\x7f]" if fixed is None else rb"[\s\S]{%d}" % fixed
    return re.compile(rb"(?:\x%02x%s)*+" % (tag, number))


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    if at < end and data[at] < 128:
        return data[at], at + 1
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, end)):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, place + 1
        shift += 7
    raise _broken(at, "a number that does not end")


def signed(value: int) -> int:
    """A number of 64 bits, as ONNX's int64 reads it."""
    return value - (1 << 64) if value >> 63 else value


def numbers(data: bytes, start: int, end: int, most: int) -> list[int]:
    """The packed numbers between two offsets, at most `most`."""
    found: list[int] = []
    at = start
    while at < end and len(found) < most:
        value, at = _varint(data, at, end)
        found.append(signed(value))
    return found


def text(data: bytes, start: int, end: int) -> str:
    """A name; bytes that are not UTF-8 are escaped, so that different names stay different."""
    return data[start:end].decode("utf-8", "surrogateescape")


def _broken(at: int, what: str) -> InvalidModel:
    return InvalidModel(f"not an ONNX model: byte {at:,} has {what}")
