"""What `onward.optimizers` shows, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onward.optimizers
from onward.optimizers import catalogue, schedules

HEAVY = {"onnx", "onnx_ir", "onnxscript", "onnxruntime", "torch", "numpy", "rich", "typer"}


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-W", "error", "-c", program]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_every_optimizer_policy_and_schedule_is_shown() -> None:
    shown = set(onward.optimizers.__all__)
    assert {*catalogue.OPTIMIZERS, *catalogue.POLICIES, *schedules.SCHEDULES} <= shown
    assert shown <= set(dir(onward.optimizers))
    for name in shown:
        assert getattr(onward.optimizers, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'onward.optimizers' has no attribute 'Adan'"):
        _ = onward.optimizers.Adan


def test_settings_and_schedules_load_nothing_heavy() -> None:
    code = "import onward.optimizers as o\n" + "\n".join(
        f"o.{name}" for name in onward.optimizers.__all__ if not name.endswith("_update")
    )
    assert not loaded_after(code) & HEAVY
