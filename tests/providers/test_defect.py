"""Known defects: in which versions and on which processors they hold."""

from __future__ import annotations

import platform

import pytest

from onward.providers.defect import ARM, TESTED_ARCHITECTURES, X86, Defect, Platform, architecture

OPEN = Defect("Log", "openvino", "log(0) is -88", since="2026.4")
ON_ARM = Defect("Log", "openvino", "log(0) is -88", since="2026.4", architectures=(ARM,))
MENDED = Defect("Log", "openvino", "log(0) is -88", since="2026.4", until="2026.10")


@pytest.mark.parametrize(
    ("row", "version", "architecture", "holds", "certain"),
    [
        (OPEN, "2026.4.1-22982-e213a14", ARM, True, True),
        (OPEN, "2026.4.1", X86, True, True),
        (OPEN, "2027.0", ARM, True, True),  # it is not known to be fixed
        (OPEN, "2025.4", ARM, True, False),  # not tried: refused, and nothing is asserted
        (OPEN, "2026.4", "riscv64", True, False),
        (ON_ARM, "2026.4", ARM, True, True),
        (ON_ARM, "2026.4", X86, False, True),  # tried, and right there
        (ON_ARM, "2025.4", X86, False, False),
        (ON_ARM, "2026.4", "riscv64", True, False),
        (MENDED, "2026.9.2", ARM, True, True),
        (MENDED, "2026.10", ARM, False, True),
        (MENDED, "2026.11.0", X86, False, True),
    ],
)
def test_defect_holds_on_its_versions_and_architectures(
    row: Defect, version: str, architecture: str, holds: bool, certain: bool
) -> None:
    place = Platform(version, architecture)
    assert (row.holds(place), row.is_certain(place)) == (holds, certain)


@pytest.mark.parametrize(
    ("machine", "name"),
    [("arm64", ARM), ("aarch64", ARM), ("AMD64", X86), ("x86_64", X86), ("riscv64", "riscv64")],
)
def test_architecture_has_one_name(
    machine: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert architecture.__wrapped__() == name


def test_bounds_as_text() -> None:
    assert OPEN.bounds == ""
    assert ON_ARM.bounds == " [aarch64]"
    assert MENDED.bounds == " [until 2026.10]"
    assert set(TESTED_ARCHITECTURES) == {ARM, X86}
