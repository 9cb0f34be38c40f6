"""Read quantities with units: bytes, bytes and operations per second, seconds."""

from __future__ import annotations

import re

from onward.errors import OptionError

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {f"{prefix}i": 1 << 10 * (i + 1) for i, prefix in enumerate("kmgt")}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-zA-Z/]*)\s*", re.ASCII)


def read_bytes(text: str, option: str = "--memory") -> int:
    """A number of bytes.

    >>> read_bytes("80GiB"), read_bytes("1.5 MB"), read_bytes("64")
    (85899345920, 1500000, 64)
    """
    return int(_read(text, option, "b", _DECIMAL | _BINARY, "80GiB or 80GB"))


def read_bandwidth(text: str, option: str = "--bandwidth") -> float:
    """Bytes per second; with "bit/s", bits.

    >>> read_bandwidth("25GB/s"), read_bandwidth("200Gbit/s")
    (25000000000.0, 25000000000.0)
    """
    number, bits, _ = text.partition("bit/s")
    if bits:
        return _read(number, option, "", _DECIMAL, "25GB/s or 200Gbit/s", text) / 8
    return _read(text, option, "b/s", _DECIMAL | _BINARY, "25GB/s or 200Gbit/s")


def read_flops(text: str, option: str = "--flops") -> float:
    """Floating-point operations per second.

    >>> read_flops("400T"), read_flops("50 GFLOP/s")
    (400000000000000.0, 50000000000.0)
    """
    return _read(re.sub(r"(?i)flops?(/s)?$", "", text.strip()), option, "", _DECIMAL, "400T", text)


def read_seconds(text: str, option: str = "--latency") -> float:
    """A short time.

    >>> read_seconds("10us"), read_seconds("0.5ms")
    (1e-05, 0.0005)
    """
    nanoseconds = {"": 10**9, "m": 10**6, "u": 10**3, "n": 1}
    return _read(text, option, "s", nanoseconds, "10us", zero=True) / 1e9


def _read(
    text: str,
    option: str,
    unit: str,
    prefixes: dict[str, int],
    examples: str,
    shown: str | None = None,
    *,
    zero: bool = False,
) -> float:
    """A number with a prefix and a unit, which may be left out."""
    given = shown or text
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise OptionError(f"{option} takes a number with a unit, such as {examples}, not {given!r}")
    number, ending = float(found[1]), found[2].lower()
    prefix = ending.removesuffix(unit)
    if prefix not in prefixes:
        raise OptionError(f"{option}: unknown unit in {given!r}\ngive it as {examples}")
    if number <= 0 and not zero:
        raise OptionError(f"{option} must be above 0, not {given!r}")
    return number * prefixes[prefix]
