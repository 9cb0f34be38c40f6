"""What a user writes as settings of `quantize`, and errors for what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from onward.compress import quantize
from onward.compress.learned_rounding.tune_settings import Tune
from onward.compress.quantization.quantize_settings import (
    QuantizeSettings,
    read_bytes,
    read_drop,
    read_settings,
    read_tune,
)
from onward.errors import OptionError
from tests.models import mlp


@pytest.mark.parametrize(("given", "share"), [(0.01, 0.01), ("1%", 0.01), ("0.5 %", 0.005), (0, 0)])
def test_a_drop_is_a_share_or_a_percentage(given: Any, share: float) -> None:
    assert read_drop(given) == pytest.approx(share)


@pytest.mark.parametrize(
    ("given", "count"), [("100MB", 10**8), ("1.5 GiB", 3 << 29), (2048, 2048), ("7kb", 7000)]
)
def test_bytes_have_units(given: Any, count: int) -> None:
    assert read_bytes(given) == count


@pytest.mark.parametrize(
    ("given", "tune"),
    [("5min", Tune(seconds=300)), (12, Tune(seconds=12)), (Tune(steps=3), Tune(steps=3))],
)
def test_learning_is_a_time_or_settings(given: Any, tune: Tune) -> None:
    assert read_tune(given) == tune


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"to": "int3"}, "no format 'int3'"),
        ({"drop": "much"}, "drop must be a share from 0 up to 1"),
        ({"drop": 1.5}, "drop must be a share"),
        ({"drop": "-1%"}, "drop must be a share"),
        ({"bits": 4.5}, "bits is a setting of int4 and int2"),
        ({"to": "int4", "bits": 9}, "bits must be between 2 and 8"),
        ({"to": "int4", "size": "big"}, "size must be a number of bytes"),
        ({"tune": "soon"}, "'soon' is neither a duration nor"),
        ({"tune": [5]}, "tune must be a time"),
        ({"provider": "cpuu"}, "cpu"),
    ],
)
def test_wrong_settings_are_one_clear_error(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        quantize(mlp(), **settings)


def test_processors_are_those_like_this_one_or_all() -> None:
    def read(to: str, processors: str | None = None) -> QuantizeSettings:
        return read_settings(
            to=to,
            drop=0.01,
            provider="cpu",
            bits=None,
            size=None,
            block=None,
            method="auto",
            processors=processors,
            tune=None,
            seed=0,
        )

    assert read("int8").processors == read("int4").processors == "this"
    assert read("int8", "all").processors == "all"
    with pytest.raises(OptionError, match="processors must be this or all, not 'arm'"):
        read("int8", "arm")
    with pytest.raises(OptionError, match="processors are a setting of int8, not of int4"):
        read("int4", "this")
