"""Quantities with units, and the errors for other texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onward.errors import OptionError
from onward.quantities import (
    parse_duration,
    read_bandwidth,
    read_bytes,
    read_flops,
    read_seconds,
)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (read_bytes, "80GiB", 80 << 30),
        (read_bytes, "80 gib", 80 << 30),
        (read_bytes, "16GB", 16 * 10**9),
        (read_bytes, "1e9", 10**9),
        (read_bytes, "1.5KiB", 1536),
        (read_bandwidth, "25GB/s", 25e9),
        (read_bandwidth, "1GiB/s", 2.0**30),
        (read_bandwidth, "200Gbit/s", 25e9),
        (read_flops, "400T", 4e14),
        (read_flops, "50 GFLOP/s", 5e10),
        (read_flops, "2 TFLOPS", 2e12),
        (read_seconds, "10us", 1e-5),
        (read_seconds, "0s", 0.0),
    ],
)
def test_units(read: Callable[[str], float], text: str, expected: float) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_bytes, "80Gx", "--memory: unknown unit in '80Gx'\ngive it as 80GiB or 80GB"),
        (read_bytes, "much", "--memory takes a number with a unit, such as 80GiB or 80GB"),
        (read_bytes, "-5GB", "--memory takes a number with a unit"),
        (read_bytes, "0GB", "--memory must be above 0, not '0GB'"),
        (read_bandwidth, "25GB", "--bandwidth: unknown unit in '25GB'"),
        (read_bandwidth, "25Xbit/s", "--bandwidth: unknown unit in '25Xbit/s'"),
        (read_flops, "4Q", "--flops: unknown unit in '4Q'"),
        (read_seconds, "10min", "--latency: unknown unit in '10min'"),
    ],
)
def test_errors(read: Callable[[str], float], text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["", "5 5", "1h30", "-1s", "2 apples", "0", "1h 0x"])
def test_other_texts_are_not_durations(text: str) -> None:
    assert parse_duration(text) is None


def test_parts_of_a_duration_are_added() -> None:
    assert parse_duration("1d 2h 3min 4s") == 86400 + 7200 + 180 + 4
