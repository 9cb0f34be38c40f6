"""Numbers as text for people: bytes, counts, seconds, rates and shares."""

from __future__ import annotations


def show_bytes(count: float) -> str:
    """Bytes in binary units.

    >>> show_bytes(512), show_bytes(10 * 2**20), show_bytes(3.5 * 2**30)
    ('512 B', '10.0 MiB', '3.5 GiB')
    """
    number, unit = _scaled(count, ("B", "KiB", "MiB", "GiB", "TiB"), 1024)
    return f"{number:,.0f} B" if unit == "B" else f"{number:,.1f} {unit}"


def show_megabytes(count: float) -> str:
    """Bytes in units of 1,000,000.

    >>> show_megabytes(2_500_000)
    '2.50 MB'
    """
    return f"{count / 1e6:,.2f} MB"


def show_count(count: float) -> str:
    """A count with a decimal prefix.

    >>> show_count(950), show_count(25_600_000), show_count(4.1e9)
    ('950', '25.6 M', '4.1 G')
    """
    number, prefix = _scaled(count, _PREFIXES)
    return f"{number:,.1f} {prefix}" if prefix else f"{number:,.0f}"


def show_rate(number: float, unit: str) -> str:
    """A number in a unit with a decimal prefix.

    >>> show_rate(18.2e9, "B/s"), show_rate(950, "FLOP/s"), show_rate(0, "B")
    ('18.2 GB/s', '950 FLOP/s', '0 B')
    """
    number, prefix = _scaled(number, _PREFIXES)
    return f"{number:.3g} {prefix}{unit}"


def show_seconds(seconds: float) -> str:
    """
    >>> show_seconds(0.0000123), show_seconds(0.0123), show_seconds(12.3)
    ('12.3 us', '12.30 ms', '12.30 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.1f} us"
    return f"{seconds * 1e3:,.2f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def percent(share: float) -> str:
    """
    >>> percent(0.714)
    '71 %'
    """
    return f"{100 * share:.0f} %"


_PREFIXES = ("", "k", "M", "G", "T", "P")


def _scaled(number: float, units: tuple[str, ...], base: int = 1000) -> tuple[float, str]:
    """The number in the first unit in which it is below `base`, or in the last unit."""
    for unit in units[:-1]:
        if number < base:
            return number, unit
        number /= base
    return number, units[-1]
