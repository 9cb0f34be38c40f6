"""The settings of compressions: what they refuse, and the bytes that they predict."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onward import distributed
from onward.distributed import HalfPrecision, Int8, PowerSGD, TopK
from onward.distributed.compression.low_rank import split_matrices
from onward.distributed.compression.uncompressed import SumReducer
from onward.errors import OptionError
from onward.programs.vector_offsets import Places, place

FLOAT32 = np.dtype("float32")
PAGE = Path(__file__).parents[3] / "docs/distributed-compression.md"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HalfPrecision(dtype="float8"), "HalfPrecision.dtype must be 'bfloat16' or"),  # type: ignore[arg-type]
        (lambda: TopK(share=0.0), "TopK.share must be a number above 0"),
        (lambda: TopK(share=1.5), "TopK.share must be a number above 0, at most 1, not 1.5"),
        (lambda: Int8(block=8), "Int8.block must be a whole number, at least 16"),
        (lambda: Int8(block=50), "Int8.block must be a multiple of 4, not 50"),
        (lambda: PowerSGD(rank=0), "PowerSGD.rank must be a whole number, at least 1"),
        (lambda: PowerSGD(minimum_rate=0.5), "PowerSGD.minimum_rate must be a number, at least 1"),
        (lambda: PowerSGD(ranks=3), "PowerSGD has no setting 'ranks'\n.*'rank'"),  # type: ignore[call-arg]
    ],
)
def test_settings_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_public_names() -> None:
    for name in distributed.__all__:
        assert getattr(distributed, name).__name__ == name


@pytest.mark.parametrize("kind", [TopK(), Int8(), PowerSGD(), HalfPrecision()], ids=repr)
def test_one_process_sends_nothing(kind: Any) -> None:
    assert kind.bytes_sent(place({"w": (50, 40)}, FLOAT32), 1) == 0


@pytest.mark.parametrize("kind", [TopK(), Int8(), PowerSGD()], ids=repr)
def test_one_process_loses_nothing(kind: Any) -> None:
    alone: Any = SimpleNamespace(rank=0, size=1)
    assert isinstance(kind.open(alone, place({"w": (50, 40)}, FLOAT32)), SumReducer)


def test_top_k_refuses_a_bucket_that_32_bits_cannot_number() -> None:
    with pytest.raises(OptionError, match="cannot number the 2,147,483,648 elements of one bucket"):
        TopK().open(SimpleNamespace(size=2), Places({}, {}, 1 << 31))  # type: ignore[arg-type]


def test_top_k_sends_the_same_number_everywhere() -> None:
    places = place({"w": (100, 7), "b": (7,)}, FLOAT32)
    assert [TopK(share=share).count(places) for share in (1e-9, 0.01, 0.5, 1.0)] == [1, 7, 354, 707]


def test_matrices_that_are_worth_compressing() -> None:
    shapes = {"w": (64, 32), "conv": (16, 8, 3, 3), "wide": (1, 500), "small": (4, 4), "b": (64,)}
    places = place(shapes | {"scalar": (), "empty": (0, 9)}, FLOAT32)
    matrices, rest = split_matrices(places, 4, 2.0)
    assert [(each.rows, each.columns, each.rank) for each in matrices] == [(64, 32, 4), (16, 72, 4)]
    assert rest == [places.slices[name] for name in ("wide", "small", "b", "scalar")]


def test_gaps_of_a_bucket() -> None:
    places = place({"w": (2, 3), "b": (16,), "c": (3,)}, FLOAT32)
    assert [*places.gaps()] == [slice(6, 16), slice(35, 48)]
    assert [*Places({}, {}, 5).gaps()] == [slice(0, 5)]
    assert [*place({"b": (16,)}, FLOAT32).gaps()] == []


def test_int8_costs_little_for_short_vectors() -> None:
    places = place({"b": (3,)}, FLOAT32)  # 16 elements with the gap
    assert Int8().bytes_sent(places, 4) < 2 * 4 * places.size * 3 // 4


def test_the_table_of_the_page_has_the_bytes_that_are_sent() -> None:
    section = PAGE.read_text("utf-8").split("## What is sent")[1].split("```")[0]
    rows = re.findall(r"^\| `?([^`|]+?)`? \| ([\d, |]+) \|$", section, re.M)
    places = place({"w": (1024, 4096), "b": (4096,)}, FLOAT32)
    plain = SimpleNamespace(bytes_sent=lambda _, size: 2 * 4 * places.size * (size - 1) // size)
    names = {kind.__name__: kind for kind in (HalfPrecision, Int8, TopK, PowerSGD)}
    assert len(rows) == 1 + 6  # with the heading
    for name, cells in rows[1:]:
        kind = plain if name == "uncompressed" else eval(name, names)
        found = [int(cell.replace(",", "")) for cell in cells.split(" | ")]
        assert found == [kind.bytes_sent(places, size) for size in (2, 8, 64)], name
