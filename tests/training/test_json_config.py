"""load_from_json: which options a file changes, and what is wrong with a file."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.training.experimental.json_config import load_from_json


@dataclass(frozen=True, kw_only=True)
class Options:
    fallback: str = "warn"
    save_onnx: str | None = None
    provider: str = "auto"


@pytest.fixture(autouse=True)
def the_level_stays() -> Iterator[None]:
    logger = logging.getLogger("onward")
    before = logger.level
    yield
    logger.setLevel(before)


def load(config: Any, folder: Path) -> Options:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    module = SimpleNamespace(options=Options())
    load_from_json(module, path)
    options: Options = module.options
    return options


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, Options()),
        ({"FallbackPolicy": ["FALLBACK_DISABLE"]}, Options(fallback="forbid")),
        ({"FallbackPolicy": ["FALLBACK_UNSUPPORTED_DATA"]}, Options()),
        ({"DebugOptions": {"SaveONNX": True}}, Options(save_onnx=".")),
        ({"DebugOptions": {"SaveONNX": True, "SaveONNXPath": "g"}}, Options(save_onnx="g")),
        ({"DebugOptions": {"SaveONNX": False, "ONNXPrefix": "my_model"}}, Options()),
        ({"PropagateCastOps": {"Level": 3}, "SkipCheck": [], "OnnxOpsetVersion": 14}, Options()),
    ],
)
def test_options_are_changed(config: Any, wanted: Options, tmp_path: Path) -> None:
    assert load(config, tmp_path) == wanted


def test_the_log_level_is_set(tmp_path: Path) -> None:
    load({"DebugOptions": {"LogLevel": "VERBOSE"}}, tmp_path)
    assert logging.getLogger("onward").level == logging.DEBUG


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
        ([], "must be a JSON object"),
    ],
)
def test_wrong_files_are_refused(config: Any, law: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=law):
        load(config, tmp_path)


def test_a_file_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Path to json is not provided\."):
        load_from_json(SimpleNamespace(options=Options()))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_from_json(SimpleNamespace(options=Options()), tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="is not a JSON file"):
        load_from_json(SimpleNamespace(options=Options()), tmp_path / "bad.json")
