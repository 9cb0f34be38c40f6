"""onward/losses/__init__.py: the names are there, and loading them waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onward.losses


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import onward.losses, sys; print(*sys.modules)"
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert not {"onnx", "onnx_ir", "numpy", "onnxruntime", "torch"} & set(done.stdout.split())


def test_every_name_is_there() -> None:
    assert "CrossEntropy" in onward.losses.__all__
    for name in onward.losses.__all__:
        assert getattr(onward.losses, name) is not None
    assert set(onward.losses.__all__) <= set(dir(onward.losses))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'CrossEntropie'"):
        _ = onward.losses.CrossEntropie  # type: ignore[attr-defined]
