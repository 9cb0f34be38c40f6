"""Ceilings: measured once, kept, and measured again when something new is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.errors import ProviderError
from onward.measure.profile import roofline
from onward.measure.profile.roofline import find_ceilings, last_cache_bytes, measure_ceilings

CPU = "CPUExecutionProvider"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was measured, without measuring it."""
    found: list[Any] = []

    def measured(request: Any) -> dict[str, Any]:
        found.append(request["kinds"])
        flops = {kind: 1e9 for kind in request["kinds"] if kind != "float64"}
        return {"flops": flops, "bytes_per_second": 2e9, "dispatch": 3e-6}

    monkeypatch.setattr(roofline, "_measure_in_child", measured)
    return found


def test_ceilings_are_measured_once_and_cached(tmp_path: Path, asked: list[Any]) -> None:
    first = find_ceilings(CPU, {}, 2, folder=tmp_path)
    assert find_ceilings(CPU, {}, 2, folder=tmp_path) == first
    assert asked == [["float32"]]
    assert first.flops_per_second("float32") == 1e9


@pytest.mark.parametrize(
    "change", [{"threads": 1}, {"options": {"device": "cpu"}}, {"fresh": True}, {"kinds": ["int8"]}]
)
def test_changed_requests_are_measured_again(
    tmp_path: Path, asked: list[Any], change: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"provider": CPU, "options": {}, "threads": 2, "folder": tmp_path}
    find_ceilings(**given)
    find_ceilings(**{**given, **change})
    assert len(asked) == 2


def test_an_unsupported_type_counts_as_float32(tmp_path: Path, asked: list[Any]) -> None:
    for _ in range(2):
        found = find_ceilings(CPU, {}, 2, ["float64"], folder=tmp_path)
    assert found.flops_per_second("float64") == 1e9 and "float64" not in found.flops
    assert len(asked) == 1


def test_a_damaged_cache_file_is_measured_again(tmp_path: Path, asked: list[Any]) -> None:
    find_ceilings(CPU, {}, 2, folder=tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text("{")
    find_ceilings(CPU, {}, 2, folder=tmp_path)
    assert len(asked) == 2


def test_a_provider_that_cannot_be_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match="NoExecutionProvider's ceilings could not be measured"):
        find_ceilings("NoExecutionProvider", {}, 1, folder=tmp_path)


def test_the_cache_is_not_larger_than_the_memory() -> None:
    assert 0 <= last_cache_bytes() < 1 << 33


@pytest.mark.integration
@pytest.mark.sampled()
@pytest.mark.parametrize(
    "provider", ["CPUExecutionProvider", "TorchExecutionProvider", "ReferenceExecutionProvider"]
)
def test_a_providers_own_kernels_are_measured(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "_FEWEST_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "_MOST_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "_SMALLEST", 128)
    monkeypatch.setattr(roofline, "_LARGEST", 128)
    found = measure_ceilings(provider, {}, 1, ["float32", "int8"])
    assert found.flops["float32"] > 1e8 and found.flops["int8"] > 1e7
    assert found.bytes_per_second > 1e8
    assert 1e-8 < found.dispatch < 1e-2
