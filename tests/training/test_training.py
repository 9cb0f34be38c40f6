"""onward.training: the package by itself loads nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onward import training


def test_importing_the_package_loads_neither_onnx_nor_an_engine() -> None:
    program = (
        "import onward.training, onward.training.onnxblock, sys\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxruntime", "torch", "numpy"} & set(loaded)


@pytest.mark.parametrize("name", ["artifacts", "onnxblock", "api"])
def test_modules_load_when_they_are_used(name: str) -> None:
    assert name in dir(training)
    assert getattr(training, name).__name__ == f"onward.training.{name}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'onward.training' has no attribute 'artefacts'"):
        _ = training.artefacts
