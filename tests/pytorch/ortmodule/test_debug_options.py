"""DebugOptions: what is checked, and which environment variables take precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import OptionError, OptionTypeError, WriteFailed
from onward.training.ortmodule import DebugOptions, LogLevel


def test_the_log_level_comes_from_the_environment_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DebugOptions().logging.log_level is LogLevel.WARNING
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    assert DebugOptions(log_level=LogLevel.FATAL).logging.log_level is LogLevel.INFO


def test_an_unknown_log_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionTypeError, match=r"Expected log_level of type LogLevel, got .*str"):
        DebugOptions(log_level="INFO")  # type: ignore[arg-type]
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFOO")
    with pytest.raises(OptionError, match=r"ORTMODULE_LOG_LEVEL has no value 'INFOO'\n.*INFO"):
        DebugOptions()


def test_graphs_need_a_prefix_and_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"onnx_prefix must be provided when save_onnx is set."):
        DebugOptions(save_onnx=True)
    with pytest.raises(TypeError, match=r"Expected name prefix of type str, got <class 'int'>."):
        DebugOptions(save_onnx=True, onnx_prefix=3)  # type: ignore[arg-type]
    with pytest.raises(WriteFailed, match="Directory /nowhere is not writable"):
        DebugOptions(save_onnx=True, onnx_prefix="m", save_path="/nowhere")
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", "/nowhere")
    with pytest.raises(OSError, match="Directory /nowhere is not writable"):
        DebugOptions(save_onnx=True, onnx_prefix="m")


def test_the_folder_is_the_current_one_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert DebugOptions().save_onnx_models.path == str(tmp_path)
    assert DebugOptions(save_path="other").save_onnx_models.path == "other"
