"""Read quantities with units: bytes, counts, durations, bytes and operations per second."""

from __future__ import annotations

import re

from onward.errors import OptionError

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {f"{prefix}i": 1 << 10 * (i + 1) for i, prefix in enumerate("kmgt")}
_NUMBER = re.compile(r"\s*(\d*\.?\d+(?:e\d+)?)\s*([a-zA-Z/]*)\s*", re.ASCII | re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d*\.?\d+)\s*([a-z]*)\s*", re.ASCII)


def parse_bytes(text: str) -> float | None:
    """A number of bytes; None if the text is not one.

    >>> parse_bytes("1.5 MB"), parse_bytes("2kib"), parse_bytes("64"), parse_bytes("2 apples")
    (1500000.0, 2048.0, 64.0, None)
    """
    return _parse(text, "b", _DECIMAL | _BINARY)


def parse_count(text: str) -> float | None:
    """A number with a prefix; None if the text is not one.

    >>> parse_count("1.5G"), parse_count("1e6"), parse_count("2B")
    (1500000000.0, 1000000.0, None)
    """
    return _parse(text, "", _DECIMAL)


def parse_duration(text: str) -> float | None:
    """A number of seconds; None if the text is not a duration above 0.

    >>> parse_duration("90"), parse_duration("5min"), parse_duration("1h30m"), parse_duration("0s")
    (90.0, 300.0, 5400.0, None)
    """
    text = text.strip().lower()
    parts = list(_DURATION.finditer(text))
    is_whole = "".join(part[0] for part in parts) == text
    units = [part[2] for part in parts]
    if not is_whole or not {*units} <= {*_SECONDS} or (len(units) > 1 and "" in units):
        return None
    return sum(float(part[1]) * _SECONDS[part[2]] for part in parts) or None


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
    if _NUMBER.fullmatch(text) is None:
        raise OptionError(f"{option} takes a number with a unit, such as {examples}, not {given!r}")
    number = _parse(text, unit, prefixes)
    if number is None:
        raise OptionError(f"{option}: unknown unit in {given!r}\ngive it as {examples}")
    if number <= 0 and not zero:
        raise OptionError(f"{option} must be above 0, not {given!r}")
    return number


def _parse(text: str, unit: str, prefixes: dict[str, int]) -> float | None:
    """A number with a prefix and a unit, which may be left out; None if the text is not one."""
    found = _NUMBER.fullmatch(text)
    prefix = None if found is None else found[2].lower().removesuffix(unit)
    return None if found is None or prefix not in prefixes else float(found[1]) * prefixes[prefix]
