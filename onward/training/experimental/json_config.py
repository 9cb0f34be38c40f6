"""load_from_json: options of an ORTModule from a JSON file with onnxruntime.training's keys."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from enum import IntFlag
from typing import Any, TypeVar

from onward.errors import FileMissing, OptionError, OptionTypeError
from onward.message_text import suggest_names
from onward.settings import setting_error
from onward.training.ortmodule._fallback import _FallbackPolicy
from onward.training.ortmodule._logger import LogLevel
from onward.training.ortmodule.options import DebugOptions, _SkipCheck
from onward.training.ortmodule.ortmodule import ORTModule
from onward.training.ortmodule.switches import read_text

Flags = TypeVar("Flags", bound=IntFlag)

_PATH = "ORTMODULE_JSON_CONFIG_PATH"
# Key -> the runtime option that it sets, and the type of its value. Those with flags are below.
_RUNTIME: dict[str, tuple[str, type]] = {
    "UseExternalGPUAllocator": ("use_external_gpu_allocator", bool),
    "EnableCustomAutogradFunction": ("enable_custom_autograd_function", bool),
    "AllowLayerNormModPrecision": ("allow_layer_norm_mod_precision", bool),
    "EnableGradAccOptimization": ("enable_grad_acc_optimization", bool),
    "UseStaticShape": ("use_static_shape", bool),
    "RunSymbolicShapeInference": ("run_symbolic_shape_infer", bool),
    "UseMemoryEfficientGradient": ("use_memory_efficient_gradient", bool),
    "OnnxOpsetVersion": ("onnx_opset_version", int),
}
_CASTS: dict[str, tuple[str, type]] = {
    "Strategy": ("propagate_cast_ops_strategy", str),
    "Level": ("propagate_cast_ops_level", int),
    "Allow": ("propagate_cast_ops_allow", list),
}
_DEBUG = {"LogLevel": str, "SaveONNX": bool, "ONNXPrefix": str, "SaveONNXPath": str}
_KEYS = ("PropagateCastOps", *_RUNTIME, "SkipCheck", "FallbackPolicy", "DebugOptions")
_NAMES = {
    dict: "an object",
    bool: "true or false",
    list: "a list",
    int: "a number",
    str: "a string",
}


def load_from_json(ortmodule: Any, path: str | os.PathLike[str] | None = None) -> None:
    """Change an ORTModule's options to those of a JSON file.

        {
            "DebugOptions": {"LogLevel": "INFO", "SaveONNX": true, "ONNXPrefix": "net"},
            "FallbackPolicy": ["FALLBACK_DISABLE"]
        }

    Without a path, ORTMODULE_JSON_CONFIG_PATH gives it. `FallbackPolicy`, `SkipCheck`,
    `OnnxOpsetVersion` and `DebugOptions` have effect; settings of the peer's engine are kept in
    only the runtime options.
    """
    if not isinstance(ortmodule, ORTModule):
        kind = type(ortmodule).__name__
        raise OptionTypeError(f"load_from_json changes an ORTModule, not a {kind}")
    path = path or read_text(_PATH, "") or None
    if path is None:
        raise OptionError(
            "Path to json is not provided.\n"
            f"Provide the path to json file through path argument or the {_PATH} variable"
        )
    config = _read(path)
    ortmodule._set_options(_debug_options(config, ortmodule._debug_options), _runtime(config))


def _runtime(config: Mapping[str, Any]) -> dict[str, Any]:
    """The runtime options that a file sets."""
    found = _typed(config, _RUNTIME)
    if "PropagateCastOps" in config:
        casts = _checked("PropagateCastOps", config["PropagateCastOps"], dict)
        _check_keys(casts, _CASTS, "PropagateCastOps")
        found |= _typed(casts, _CASTS, "PropagateCastOps.")
    if "SkipCheck" in config:
        found["skip_check"] = _flags("SkipCheck", config["SkipCheck"], _SkipCheck)
    if "FallbackPolicy" in config:
        found["fallback_policy"] = _flags(
            "FallbackPolicy", config["FallbackPolicy"], _FallbackPolicy
        )
    return {name: value for name, value in found.items() if value is not None}


def _debug_options(config: Mapping[str, Any], before: DebugOptions) -> DebugOptions:
    if "DebugOptions" not in config:
        return before
    given = _checked("DebugOptions", config["DebugOptions"], dict)
    _check_keys(given, _DEBUG, "DebugOptions")
    for key, value in given.items():
        _checked(f"DebugOptions.{key}", value, _DEBUG[key])
    level, saving = before.logging.log_level, before.save_onnx_models
    if "LogLevel" in given:
        level = LogLevel[_choice("DebugOptions.LogLevel", given["LogLevel"], LogLevel.__members__)]
    return DebugOptions(
        level,
        given.get("SaveONNX", saving.save),
        given.get("ONNXPrefix", saving.name_prefix),
        given.get("SaveONNXPath", saving.path),
    )


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
    _check_keys(config, _KEYS, os.fspath(path))
    return config


def _typed(
    given: Mapping[str, Any], table: Mapping[str, tuple[str, type]], prefix: str = ""
) -> dict[str, Any]:
    return {
        name: _checked(prefix + key, given[key], kind)
        for key, (name, kind) in table.items()
        if key in given
    }


def _flags(key: str, value: Any, kind: type[Flags]) -> Flags | None:
    """The flags of a list of names; None: an empty list changes nothing."""
    found: Flags | None = None
    for name in _checked(key, value, list):
        flag = kind[_choice(key, name, kind.__members__)]
        found = flag if found is None else found | flag
    return found


def _checked(key: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise setting_error(key, _NAMES[kind], value)
    return value


def _check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise OptionError(f"{where} has an unknown key {key!r}\n{suggest_names(key, known)}")


def _choice(key: str, value: Any, known: Mapping[str, Any]) -> str:
    if value not in known:
        raise setting_error(key, "one of its names", value, suggest_names(str(value), known))
    return str(value)
