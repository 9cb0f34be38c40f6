"""load_from_json: options of an ORTModule from a JSON file with onnxruntime.training's keys."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from onward.errors import FileMissing, OptionError
from onward.message_text import suggest_names
from onward.settings import setting_error

log = logging.getLogger("onward")

_LEVELS = {
    "VERBOSE": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_POLICIES = (
    "FALLBACK_DISABLE",
    "FALLBACK_FORCE_TORCH_FORWARD",
    "FALLBACK_FORCE_TORCH_BACKWARD",
    "FALLBACK_UNSUPPORTED_DEVICE",
    "FALLBACK_UNSUPPORTED_DATA",
    "FALLBACK_UNSUPPORTED_TORCH_MODEL",
    "FALLBACK_UNSUPPORTED_ONNX_MODEL",
    "FALLBACK_BAD_INITIALIZATION",
)
_IGNORED: dict[str, type] = {  # settings of the peer's engine, which ours does not have
    "PropagateCastOps": dict,
    "UseExternalGPUAllocator": bool,
    "EnableCustomAutogradFunction": bool,
    "AllowLayerNormModPrecision": bool,
    "EnableGradAccOptimization": bool,
    "UseStaticShape": bool,
    "RunSymbolicShapeInference": bool,
    "SkipCheck": list,
    "UseMemoryEfficientGradient": bool,
    "OnnxOpsetVersion": int,
}
_DEBUG = {"LogLevel": str, "SaveONNX": bool, "ONNXPrefix": str, "SaveONNXPath": str}


def load_from_json(ortmodule: Any, path: str | os.PathLike[str] | None = None) -> None:
    """Change a module's options to those of a JSON file.

        {
            "DebugOptions": {"LogLevel": "INFO", "SaveONNX": true, "SaveONNXPath": "graphs"},
            "FallbackPolicy": ["FALLBACK_DISABLE"]
        }

    `LogLevel` is that of the logger "onward". `FALLBACK_DISABLE` forbids running parts of the
    module in PyTorch; any other policy allows it, with a warning. The peer's other keys are checked
    and logged as ignored.
    """
    if path is None:
        raise OptionError("Path to json is not provided.\ngive it: load_from_json(module, path)")
    config = _read(path)
    changes: dict[str, Any] = {}
    for key, value in config.items():
        if key in _IGNORED:
            _check(key, value, _IGNORED[key])
            log.info("%s: %s is ignored: it belongs to onnxruntime's engine", path, key)
        else:
            changes |= _EFFECTS[key](value)
    level = changes.pop("log_level", None)
    if level is not None:
        log.setLevel(level)
    known = {field.name for field in dataclasses.fields(ortmodule.options)}
    changes = {name: value for name, value in changes.items() if name in known}
    ortmodule.options = dataclasses.replace(ortmodule.options, **changes)


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except FileNotFoundError as error:
        raise FileMissing(
            f"{os.fspath(path)} does not exist\ngive the path of a JSON file"
        ) from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise OptionError(f"{os.fspath(path)} is not a JSON file: {error}") from error
    if not isinstance(config, dict):
        raise setting_error(os.fspath(path), "a JSON object", config)
    _check_keys(config, [*_EFFECTS, *_IGNORED], os.fspath(path))
    return config


def _debug_options(value: Any) -> dict[str, Any]:
    _check("DebugOptions", value, dict)
    _check_keys(value, list(_DEBUG), "DebugOptions")
    for key, given in value.items():
        _check(f"DebugOptions.{key}", given, _DEBUG[key])
    changes: dict[str, Any] = {}
    if "LogLevel" in value:
        changes["log_level"] = _LEVELS[_choice("DebugOptions.LogLevel", value["LogLevel"], _LEVELS)]
    if "SaveONNX" in value:
        changes["save_onnx"] = value.get("SaveONNXPath", ".") if value["SaveONNX"] else None
    if "ONNXPrefix" in value:
        changes["onnx_prefix"] = value["ONNXPrefix"]
    return changes


def _fallback_policy(value: Any) -> dict[str, Any]:
    _check("FallbackPolicy", value, list)
    names = [_choice("FallbackPolicy", name, dict.fromkeys(_POLICIES)) for name in value]
    return {"fallback": "forbid" if names == ["FALLBACK_DISABLE"] else "warn"} if names else {}


_EFFECTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "DebugOptions": _debug_options,
    "FallbackPolicy": _fallback_policy,
}
_NAMES = {
    dict: "an object",
    bool: "true or false",
    list: "a list",
    int: "a number",
    str: "a string",
}


def _check(key: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise setting_error(key, _NAMES[kind], value)


def _check_keys(given: Mapping[str, Any], known: list[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise OptionError(f"{where} has an unknown key {key!r}\n{suggest_names(key, known)}")


def _choice(key: str, value: Any, known: Mapping[str, Any]) -> str:
    if value not in known:
        raise setting_error(key, "one of its names", value, suggest_names(str(value), known))
    return str(value)
