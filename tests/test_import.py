"""What `import onward` loads, and which names it has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import onnxruntime
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


def test_the_session_class_needs_no_torch() -> None:
    assert "torch" not in loaded_after("from onward import InferenceSession")


def test_running_on_a_stock_provider_needs_no_torch() -> None:
    code = """
import numpy, onnx.parser, onward
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
)
session = onward.InferenceSession(model, providers=["CPUExecutionProvider"])
session.run(None, {"x": numpy.ones(2, numpy.float32)})
"""
    assert not loaded_after(code) & ({"torch"} | SERVERS - {"asyncio"} | SCREENS)


def test_every_public_name_exists() -> None:
    assert "InferenceSession" in onward.__all__
    for name in onward.__all__:
        assert getattr(onward, name) is not None
    assert set(onward.__all__) <= set(dir(onward))


@pytest.mark.sampled(last=True)
@pytest.mark.parametrize(
    "name",
    ["losses.MSE", "optimizers.AdamW", "training.api.Module", "training.artifacts.OptimType",
     "training.onnxblock.loss.MSELoss"],
)  # fmt: skip
def test_packages_load_on_access(name: str) -> None:
    assert "torch" not in loaded_after(f"import onward\nonward.{name}")


def test_an_unknown_name_raises_with_a_suggestion() -> None:
    law = r"module 'onward' has no attribute 'InferenceSesion'\ndid you mean 'InferenceSession'"
    with pytest.raises(AttributeError, match=law):
        _ = onward.InferenceSesion  # type: ignore[attr-defined]


def test_an_absent_name_of_onnxruntime_says_what_to_do() -> None:
    with pytest.raises(AttributeError, match="'ModelCompiler'\ncompile with onnxruntime itself"):
        _ = onward.ModelCompiler  # type: ignore[attr-defined]
    assert not hasattr(onward, "quantization")


# what onnxruntime has besides: types of its returns, plug-ins and its own parts
NOT_OURS = {
    "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtEpAssignedNode", "OrtEpAssignedSubgraph",
    "OrtEpContextData", "OrtEpContextDataBuffer", "OrtEpDevice", "OrtExternalInitializerInfo",
    "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtMemoryInfoDeviceType", "OrtSyncStream",
    "SessionIOBinding", "contextlib", "cuda_version", "import_capi_exception",
    "onnxruntime_validation", "package_name", "version",
}  # fmt: skip


def test_every_onnxruntime_name_is_present_or_absent_on_purpose() -> None:
    peers = {name for name in dir(onnxruntime) if not name.startswith("_")}
    peers -= {name for name in peers if isinstance(getattr(onnxruntime, name), ModuleType)}
    ours = {*dir(onward), *onward._ABSENT}
    assert peers - ours <= NOT_OURS


def test_dir_lists_public_modules() -> None:
    modules = {"compat", "errors", "losses", "optimizers", "testing", "training"}
    assert modules <= set(dir(onward))


def test_module_functions_work_as_in_onnxruntime() -> None:
    assert onward.get_device() == onnxruntime.get_device()
    assert set(onward.get_available_providers()) <= set(onward.get_all_providers())
    onward.set_default_logger_severity(2)
    onward.set_default_logger_verbosity(0)
    onward.set_seed(1)
    op = onward.OpBuilder()
    model = op.model(y=op.Neg(op.input("x", "float32", (2,))))
    for provider in ("CPUExecutionProvider", "ReferenceExecutionProvider"):
        binding = onward.IOBinding(onward.InferenceSession(model, providers=[provider]))
        assert isinstance(binding, onward.IOBinding)


@pytest.mark.integration
def test_a_type_checker_knows_every_public_name(tmp_path: Path) -> None:
    packages = {
        "onward": onward, "onward.losses": onward.losses, "onward.optimizers": onward.optimizers,
        "onward.training": onward.training, "onward.training.api": onward.training.api,
        "onward.training.onnxblock": onward.training.onnxblock,
    }  # fmt: skip
    lines = [f"import {name}" for name in packages]
    for name, package in packages.items():
        public = getattr(package, "__all__", dir(package))
        lines += [f"{name}.{each}" for each in public] + [f"{name}.typo"]
    snippet = tmp_path / "snippet.py"
    snippet.write_text("\n".join(lines))
    files = [str(Path(package.__file__ or "")) for package in packages.values()]
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--follow-imports=skip", "--cache-dir", os.devnull]
    done = subprocess.run(
        [*command, *files, str(snippet)],
        cwd=Path(onward.__file__).parent.parent, capture_output=True, text=True,
    )  # fmt: skip
    errors = re.findall(r"snippet.py:\d+: error: (.*)", done.stdout)
    assert errors == ['Module has no attribute "typo"  [attr-defined]'] * len(packages), done.stdout
