"""Mutators: turn a valid model into a broken one, by a random generator.

Byte mutators work on the file, structure mutators on the parsed model; `mutant` draws and applies
a few of them, and returns the same bytes for the same seed and number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from onnx import ModelProto

from conformance.reliability.structure import STRUCTURE

Random = random.Random


def mutant(seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """The mutant of this number, from one of the seeds."""
    rng = random.Random(f"{seed}:{number}")
    model = ModelProto.FromString(rng.choice(seeds))
    structural = rng.random() < 0.65
    if structural:
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            rng.choice(STRUCTURE)(rng, model)
    data = bytearray(model.SerializeToString())
    if not structural or rng.random() < 0.15:
        other = rng.choice(seeds)
        for _ in range(rng.choice([1, 1, 2, 4])):
            rng.choice(BYTES)(rng, data, other)
    return bytes(data)


# -- bytes -------------------------------------------------------------------------------------


def flip(rng: Random, data: bytearray, other: bytes) -> None:
    for _ in range(rng.randint(1, 4)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(rng: Random, data: bytearray, other: bytes) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def insert(rng: Random, data: bytearray, other: bytes) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 16))


def delete(rng: Random, data: bytearray, other: bytes) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(1, 32)]


def splice(rng: Random, data: bytearray, other: bytes) -> None:
    at, start = rng.randint(0, len(data)), rng.randint(0, len(other))
    piece = other[start : start + rng.randint(1, 200)]
    data[at : at + rng.choice([0, len(piece)])] = piece


def repeat(rng: Random, data: bytearray, other: bytes) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 8)


def truncate(rng: Random, data: bytearray, other: bytes) -> None:
    del data[rng.randint(0, len(data)) :]


def resize(rng: Random, data: bytearray, other: bytes) -> None:
    """Change a length field."""
    places = [at for at in _lengths(data, 0, len(data)) if at < len(data)]
    if places:
        at = rng.choice(places)
        data[at] = rng.choice([0, 1, data[at] ^ 1, (data[at] + 1) & 0x7F, 0x7F, 0xFF])


def _lengths(data: bytearray, start: int, end: int, depth: int = 0) -> Iterator[int]:
    """The positions of length fields, nested ones included."""
    while start < end and depth < 6:
        tag, start = _varint(data, start, end)
        kind = tag & 7
        if kind == 0:
            _, start = _varint(data, start, end)
        elif kind in (1, 5):
            start += 8 if kind == 1 else 4
        elif kind == 2:
            at = start
            size, start = _varint(data, start, end)
            if start + size > end:
                return
            yield at
            yield from _lengths(data, start, start + size, depth + 1)
            start += size
        else:
            return


def _varint(data: bytearray, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 63:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
        shift += 7
    return value, at


BYTES: list[Callable[[Random, bytearray, bytes], None]] = [
    flip, overwrite, insert, delete, splice, repeat, truncate, resize,
]  # fmt: skip
