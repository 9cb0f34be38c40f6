"""load_from_json: which options a file changes, and what is wrong with a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from onward.training.experimental.json_config import load_from_json  # noqa: E402
from onward.training.ortmodule import LogLevel, ORTModule  # noqa: E402
from onward.training.ortmodule._fallback import _FallbackPolicy  # noqa: E402
from onward.training.ortmodule._logger import LOGGER  # noqa: E402


@pytest.fixture(autouse=True)
def the_level_stays() -> Iterator[None]:
    before = LOGGER.level
    yield
    LOGGER.setLevel(before)


def load(config: Any, folder: Path, module: Any = None) -> Any:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    module = ORTModule(module or torch.nn.Linear(3, 2))
    load_from_json(module, path)
    return module


def test_runtime_options_are_changed_in_both_modes(tmp_path: Path) -> None:
    config = {
        "PropagateCastOps": {"Strategy": "FLOOD_FILL", "Level": 3, "Allow": ["Abs", "Neg"]},
        "UseExternalGPUAllocator": False,
        "EnableGradAccOptimization": True,
        "UseStaticShape": True,
        "RunSymbolicShapeInference": False,
        "SkipCheck": ["SKIP_CHECK_BUILD_GRADIENT", "SKIP_CHECK_DEVICE"],
        "UseMemoryEfficientGradient": True,
        "FallbackPolicy": ["FALLBACK_DISABLE"],
        "OnnxOpsetVersion": 13,
    }
    module = load(config, tmp_path)
    for mode in (True, False):
        options = module._torch_module._execution_manager(mode)._runtime_options
        assert options.propagate_cast_ops_strategy == "FLOOD_FILL"
        assert options.propagate_cast_ops_level == 3
        assert options.propagate_cast_ops_allow == ["Abs", "Neg"]
        assert not options.use_external_gpu_allocator and not options.run_symbolic_shape_infer
        assert options.enable_grad_acc_optimization and options.use_static_shape
        assert options.use_memory_efficient_gradient and options.onnx_opset_version == 13
        assert options.skip_check.value == 6
        assert options.fallback_policy is _FallbackPolicy.FALLBACK_DISABLE


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    before = ORTModule(torch.nn.Linear(3, 2))._runtime_options
    assert load({}, tmp_path)._runtime_options == before
    assert load({"FallbackPolicy": []}, tmp_path)._runtime_options == before


def test_the_fallback_policy_has_effect(tmp_path: Path) -> None:
    class Refused(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    x = torch.ones(2)
    load({"FallbackPolicy": ["FALLBACK_UNSUPPORTED_ONNX_MODEL"]}, tmp_path, Refused())(x)
    with pytest.raises(RuntimeError, match="exporting the PyTorch model"):
        load({"FallbackPolicy": ["FALLBACK_DISABLE"]}, tmp_path, Refused())(x)


@pytest.mark.integration
def test_debug_options_have_effect(tmp_path: Path) -> None:
    debug = {"LogLevel": "VERBOSE", "SaveONNX": True, "ONNXPrefix": "net"}
    module = load({"DebugOptions": debug | {"SaveONNXPath": str(tmp_path)}}, tmp_path)
    assert module._debug_options.logging.log_level is LogLevel.VERBOSE
    assert LOGGER.level == 10
    module(torch.ones(2, 3)).sum().backward()
    assert list(tmp_path.glob("net_*.onnx"))


def test_the_environment_gives_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"OnnxOpsetVersion": 15}))
    monkeypatch.setenv("ORTMODULE_JSON_CONFIG_PATH", str(path))
    module = ORTModule(torch.nn.Linear(3, 2))
    load_from_json(module)
    assert module._runtime_options.onnx_opset_version == 15


@pytest.mark.parametrize(
    ("config", "law"),
    [
        ({"FalbackPolicy": []}, "unknown key 'FalbackPolicy'\ndid you mean 'FallbackPolicy'"),
        ({"FallbackPolicy": ["DISABLE"]}, "FallbackPolicy must be one of its names, not 'DISABLE'"),
        ({"FallbackPolicy": "x"}, "FallbackPolicy must be a list, not 'x'"),
        ({"DebugOptions": {"LogLevel": "LOUD"}}, "DebugOptions.LogLevel must be one of its names"),
        ({"DebugOptions": {"SaveONNX": 1}}, "DebugOptions.SaveONNX must be true or false, not 1"),
        ({"DebugOptions": {"Save": True}}, "DebugOptions has an unknown key 'Save'"),
        ({"UseStaticShape": "no"}, "UseStaticShape must be true or false"),
        ({"OnnxOpsetVersion": True}, "OnnxOpsetVersion must be a number"),
        ({"PropagateCastOps": {"Speed": 1}}, "PropagateCastOps has an unknown key 'Speed'"),
        ([], "must be a JSON object"),
    ],
)
def test_wrong_files_are_refused(config: Any, law: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=law):
        load(config, tmp_path)


def test_a_file_is_needed(tmp_path: Path) -> None:
    module = ORTModule(torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"Path to json is not provided\."):
        load_from_json(module)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_from_json(module, tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="is not a JSON file"):
        load_from_json(module, tmp_path / "bad.json")
    with pytest.raises(TypeError, match="changes an ORTModule, not a Linear"):
        load_from_json(torch.nn.Linear(2, 2), tmp_path / "bad.json")
