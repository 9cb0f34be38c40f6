"""The list of operators for a reduced build."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from onward.compress.edge import ort_format


class _Tools:
    """onnxruntime's tools: importing them sets the level of their log."""

    def __init__(self) -> None:
        self.level = logging.NOTSET

    def __getattr__(self, name: str) -> Any:
        logger = logging.getLogger("ort_format_model.utils")
        logger.setLevel(logging.DEBUG)

        def create_config(models: list[Path], path: Path, types: bool) -> None:
            self.level = logger.level
            path.write_text("# a list\nai.onnx;11;Conv\n")

        return create_config


def test_log_of_the_tools_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = _Tools()
    monkeypatch.setattr(ort_format, "tools", tools)
    ort_format.write_operator_config(tmp_path / "m.ort", tmp_path / "list.config")
    assert tools.level == logging.ERROR
