"""Triton's ModelConfig as one plain form, from text format or JSON.

normalize({"input": {"name": "x", "dims": 4}}) == {"input": [{"name": "x", "dims": [4]}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from onward.errors import OptionError
from onward.serving.core import Json

# Fields of ModelConfig and its messages that are repeated, and that are maps.
_LISTS = {
    "input", "output", "dims", "shape", "instance_group", "gpus", "profile", "secondary_devices",
    "preferred_batch_size", "versions", "control_input", "control", "state", "initial_state",
    "step", "model_warmup", "batch_input", "batch_output", "int32_false_true", "fp32_false_true",
    "bool_false_true", "cpu_execution_accelerator", "gpu_execution_accelerator",
}  # fmt: skip
_MAPS = {
    "parameters", "input_map", "output_map", "inputs", "priority_queue_policy", "metric_tags",
    "cc_model_filenames",
}  # fmt: skip
_MESSAGES = {
    "version_policy", "latest", "all", "specific", "dynamic_batching", "default_queue_policy",
    "sequence_batching", "ensemble_scheduling", "optimization", "execution_accelerators",
    "response_cache", "reshape", "rate_limiter",
    # repeated
    "input", "output", "instance_group", "control_input", "control", "state", "initial_state",
    "step", "model_warmup", "cpu_execution_accelerator", "gpu_execution_accelerator",
    # values of maps
    "inputs", "priority_queue_policy",
}  # fmt: skip
_SINGLE = {"kind", "data_type", "name", "label_filename", "timeout_action", "model_name"}
_FLAGS = {
    "enable", "optional", "is_shape_tensor", "allow_ragged_batch", "is_non_linear_format_io",
    "preserve_ordering", "allow_timeout_override", "zero_data", "random_data", "eager_batching",
    "graphs", "busy_wait_events", "output_copy_stream", "passive", "decoupled",
    "use_same_buffer_for_input_output", "use_growable_memory",
}  # fmt: skip
_WHOLE = {"dims", "shape", "gpus", "preferred_batch_size", "versions"}  # lists of whole numbers

TYPES = {
    **{f"TYPE_{name}": name for name in (
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
        "FP16", "FP32", "FP64", "BF16",
    )},
    "TYPE_STRING": "BYTES",
}  # fmt: skip
_TYPES_BY_NUMBER = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "STRING", "BF16",
)  # fmt: skip
OVERRIDE = "the configuration of the request"  # in errors, where config.pbtxt stands else
_TENSOR = {
    "name", "data_type", "format", "dims", "reshape", "is_shape_tensor", "optional",
    "allow_ragged_batch", "label_filename", "is_non_linear_format_io",
}  # fmt: skip
# The fields of the messages that are read, by the field that holds them.
_KNOWN_WITHIN = {
    "input": _TENSOR,
    "output": _TENSOR,
    "reshape": {"shape"},
    "version_policy": {"latest", "all", "specific"},
    "latest": {"num_versions"},
    "specific": {"versions"},
    "dynamic_batching": {
        "preferred_batch_size", "max_queue_delay_microseconds", "preserve_ordering",
        "priority_levels", "default_priority_level", "default_queue_policy",
        "priority_queue_policy",
    },
    "default_queue_policy": {
        "timeout_action", "default_timeout_microseconds", "allow_timeout_override",
        "max_queue_size",
    },
    "sequence_batching": {
        "direct", "oldest", "max_sequence_idle_microseconds", "control_input", "state",
        "generative_sequence", "iterative_sequence",
    },
    "control_input": {"name", "control"},
    "control": {"kind", "int32_false_true", "fp32_false_true", "bool_false_true", "data_type"},
    "state": {
        "input_name", "output_name", "data_type", "dims", "initial_state",
        "use_same_buffer_for_input_output", "use_growable_memory",
    },
    "initial_state": {"data_type", "dims", "zero_data", "data_file", "name"},
    "instance_group": {
        "name", "kind", "count", "rate_limiter", "gpus", "secondary_devices", "profile", "passive",
        "host_policy",
    },
    "ensemble_scheduling": {"step"},
    "step": {"model_name", "model_version", "input_map", "output_map", "model_namespace"},
}  # fmt: skip
_KNOWN = {
    "name", "platform", "backend", "runtime", "max_batch_size", "version_policy", "input", "output",
    "batch_input", "batch_output", "optimization", "dynamic_batching", "sequence_batching",
    "ensemble_scheduling", "instance_group", "default_model_filename", "cc_model_filenames",
    "metric_tags", "parameters", "model_warmup", "model_operations", "model_transaction_policy",
    "model_repository_agents", "response_cache", "model_metrics",
}  # fmt: skip


def normalize(config: Mapping[str, Any], where: str = "config") -> Json:
    """A configuration in its plain form: lists are lists, maps are dictionaries."""
    found = _normal(config, where)
    assert isinstance(found, dict)
    for each in (*found.get("input", ()), *found.get("output", ())):
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            raise OptionError(f"{where}: an input or output has no name")
        each["data_type"] = _data_type(each.get("data_type"), each["name"], where)
    if "max_batch_size" in found:
        found["max_batch_size"] = whole(found["max_batch_size"], "max_batch_size", where)
        if found["max_batch_size"] < 0:
            raise OptionError(f"{where}: max_batch_size must be 0 or more")
    return found


def read_override(text: Any) -> Json:
    """The configuration that a client gives as JSON when it loads a model."""
    if isinstance(text, (bytes, bytearray)):
        text = text.decode("utf-8", "replace")
    try:
        config = text if isinstance(text, Mapping) else json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"{OVERRIDE} is not JSON: {error}") from error
    if not isinstance(config, Mapping):
        raise OptionError(f"{OVERRIDE} is not a JSON object")
    return normalize(config, OVERRIDE)


def unknown_fields(config: Mapping[str, Any]) -> list[str]:
    """The fields that ModelConfig and its messages do not have, such as misspelt ones."""
    return [*sorted(set(config) - _KNOWN), *dict.fromkeys(_unknown_within(config))]


def _unknown_within(message: Mapping[str, Any]) -> Iterator[str]:
    for name, value in message.items():
        known = _KNOWN_WITHIN.get(name)
        if known is None:
            continue
        for each in value if isinstance(value, list) else [value]:
            yield from (f"{name}.{field}" for field in sorted(set(each) - known))
            yield from _unknown_within(each)


def is_ensemble(config: Mapping[str, Any] | None) -> bool:
    """Whether a configuration describes a graph of models."""
    return config is not None and "ensemble_scheduling" in config


def whole(value: Any, name: str, where: str) -> int:
    """A whole number of 64 bits at most; JSON writes the largest ones as text."""
    try:
        if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
            raise ValueError
        found = int(value)
        if not -(1 << 63) <= found < 1 << 64:
            raise ValueError
        return found
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"{where}: {name} is {value!r}, not a whole number of 64 bits") from None


def _normal(value: Any, where: str, name: str = "") -> Any:
    if name in _MAPS:
        found = _map(value, name, where)
        return {key: _message(_normal(each, where), name, where) for key, each in found.items()}
    if name in _LISTS:
        listed = value if isinstance(value, list) else [value]
        if name in _WHOLE:
            return [whole(each, name, where) for each in listed]
        return [_message(_normal(each, where), name, where) for each in listed]
    if name in _SINGLE and isinstance(value, (list, Mapping)):
        raise OptionError(f"{where}: {name} is {value!r}, not one value")
    if isinstance(value, Mapping):
        snake = {_snake_case(str(key)): each for key, each in value.items()}
        # null is an unset field in the JSON form of protobuf
        given = {key: each for key, each in snake.items() if each is not None}
        return {key: _normal(each, where, key) for key, each in given.items()}
    return _flag(value, name, where) if name in _FLAGS else _message(value, name, where)


def _flag(value: Any, name: str, where: str) -> bool:
    """True or false; text format has 1 and 0 for them too."""
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise OptionError(f"{where}: {name} is {value!r}, not true or false")


def _message(value: Any, name: str, where: str) -> Any:
    """The value of a field, which must have fields itself if it is a message."""
    if name in _MESSAGES and not isinstance(value, Mapping):
        raise OptionError(f"{where}: {name} is {value!r}: write {name} {{ field: .. }}")
    return value


def _map(value: Any, name: str, where: str) -> dict[str, Any]:
    """A map, from entries {key, value} of text format or from a JSON object."""
    entries = value if isinstance(value, list) else [value]
    if all(isinstance(each, Mapping) and "key" in each for each in entries):
        return {str(each["key"]): each.get("value", {}) for each in entries}
    if not isinstance(value, Mapping):
        raise OptionError(f"{where}: {name} is not a map: write {name} {{ key: .. value: .. }}")
    return {str(key): each for key, each in value.items()}


def _snake_case(name: str) -> str:
    """maxBatchSize, as protobuf's JSON has it, is max_batch_size."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), name)


def _data_type(value: Any, name: str, where: str) -> str:
    if isinstance(value, int) and 0 < value < len(_TYPES_BY_NUMBER):
        value = f"TYPE_{_TYPES_BY_NUMBER[value]}"
    if value is None:
        return "TYPE_INVALID"  # the model's own
    if value not in TYPES and value != "TYPE_INVALID":
        raise OptionError(f"{where}: {name!r} has the unknown data_type {value!r}")
    return str(value)
