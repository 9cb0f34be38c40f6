"""What `import onward` does not load: the price of an import is what it drags in."""

from __future__ import annotations

import subprocess
import sys

import pytest

import onward

ENGINES = {"torch", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "sympy"}
SERVERS = {"starlette", "uvicorn", "grpc", "fastapi", "asyncio"}
SCREENS = {"typer", "rich", "click"}


def loaded_after(code: str) -> set[str]:
    """The top-level packages that a fresh process has loaded after running the code."""
    program = f"{code}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-W", "error", "-c", program]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_importing_onward_loads_no_engine_no_server_and_no_screen() -> None:
    assert not loaded_after("import onward") & (ENGINES | SERVERS | SCREENS)


def test_the_session_class_comes_without_torch() -> None:
    assert "torch" not in loaded_after("from onward import InferenceSession")


def test_running_on_a_stock_provider_comes_without_torch() -> None:
    code = """
import numpy, onnx.parser, onward
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
)
session = onward.InferenceSession(model, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones(2, numpy.float32)})
"""
    assert not loaded_after(code) & ({"torch"} | SERVERS - {"asyncio"} | SCREENS)


def test_every_public_name_is_there() -> None:
    assert "InferenceSession" in onward.__all__
    for name in onward.__all__:
        assert getattr(onward, name) is not None
    assert set(onward.__all__) <= set(dir(onward))


@pytest.mark.parametrize(
    "name",
    ["losses.MSE", "optimizers.AdamW", "training.api.Module", "training.artifacts.OptimType",
     "training.onnxblock.loss.MSELoss"],
)  # fmt: skip
def test_packages_are_there_without_being_imported(name: str) -> None:
    assert "torch" not in loaded_after(f"import onward\nonward.{name}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="InferenceSesion"):
        _ = onward.InferenceSesion  # type: ignore[attr-defined]
