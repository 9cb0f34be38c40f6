"""Turn Triton's ModelConfig into ModelSettings, and name what has no counterpart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.configs.check_settings import make_settings
from onward.errors import OptionError
from onward.providers.choose import available
from onward.serving.core import Json
from onward.serving.models.model_config import unknown_fields, whole
from onward.serving.models.model_folder import inner_name
from onward.serving.settings import ModelSettings

_CACHE_BYTES = 64 << 20  # Triton's is one cache for all models, sized by a flag
_CONTROLS = {
    "CONTROL_SEQUENCE_START": "start",
    "CONTROL_SEQUENCE_END": "end",
    "CONTROL_SEQUENCE_READY": "ready",
    "CONTROL_SEQUENCE_CORRID": "correlation_id",
}
_ACCELERATORS = {
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
}
_UNSUPPORTED = (
    "batch_input", "batch_output", "model_operations", "model_transaction_policy",
    "model_repository_agents", "cc_model_filenames", "runtime",
)  # fmt: skip


_ENGINES = {"", "onnxruntime", "onnxruntime_onnx", "ensemble"}  # backends and platforms
# Parameters of Triton's onnxruntime; other names are the user's own.
_ENGINE_PARAMETERS = (
    "inter_op_thread_count", "execution_mode", "enable_mem_arena", "enable_mem_pattern",
)  # fmt: skip


@dataclass
class _Reading:
    """What has been read so far."""

    where: str
    settings: dict[str, Any] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)

    def seconds(self, value: Any, name: str) -> float:
        return whole(value, name, self.where) / 1e6

    def ignore(self, fields: Mapping[str, Any], names: Sequence[str], prefix: str = "") -> None:
        self.ignored += [prefix + name for name in names if fields.get(name)]


def settings_of_config(config: Json, where: str = "config.pbtxt") -> tuple[Json, list[str]]:
    """The settings that a normalised configuration gives, and the fields that are ignored."""
    reading = _Reading(where)
    reading.ignored += unknown_fields(config)
    reading.ignore(config, _UNSUPPORTED)
    for name in ("platform", "backend"):
        if config.get(name, "") not in _ENGINES:
            reading.ignored.append(f"{name} {config[name]!r} (onnxruntime runs it)")
    for each in config.get("input", ()):
        reading.ignore(each, ("allow_ragged_batch",), f"input {each.get('name')!r}: ")
    if "max_batch_size" in config:
        reading.settings["max_batch_size"] = config["max_batch_size"]
        reading.settings["batch_delay"] = 0.0
    if "version_policy" in config:
        reading.settings["version_policy"] = config["version_policy"]
    if config.get("response_cache", {}).get("enable"):
        reading.settings["result_cache_bytes"] = _CACHE_BYTES
    _read_dynamic_batching(config.get("dynamic_batching"), reading)
    _read_sequences(config.get("sequence_batching"), reading)
    _read_engine(config, reading)
    _read_warm_up(config, reading)
    labels = {each["name"]: inner_name(each["label_filename"], where)
              for each in config.get("output", ()) if each.get("label_filename")}  # fmt: skip
    if labels:
        reading.settings["labels"] = labels
    return reading.settings, reading.ignored


def model_settings(*parts: Mapping[str, Any]) -> ModelSettings:
    """Merge settings of several sources: later ones override earlier ones."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= part
    return make_settings(ModelSettings, merged)


def _read_dynamic_batching(batching: Json | None, reading: _Reading) -> None:
    if batching is None:
        return
    settings = reading.settings
    delay = batching.get("max_queue_delay_microseconds", 0)
    settings["batch_delay"] = reading.seconds(delay, "max_queue_delay_microseconds")
    if batching.get("preferred_batch_size"):
        settings["preferred_batch_sizes"] = batching["preferred_batch_size"]
    levels = whole(batching.get("priority_levels", 0), "priority_levels", reading.where)
    if levels:
        settings["priority_levels"] = levels
        default = batching.get("default_priority_level", 0)
        settings["default_priority"] = whole(default, "default_priority_level", reading.where)
    reading.ignore(batching, ("preserve_ordering", "priority_queue_policy"), "dynamic_batching.")
    policy = batching.get("default_queue_policy")
    if policy is not None:
        _read_queue_policy(policy, reading)


def _read_queue_policy(policy: Json, reading: _Reading) -> None:
    settings = reading.settings
    timeout = policy.get("default_timeout_microseconds", 0)
    if whole(timeout, "default_timeout_microseconds", reading.where):
        settings["timeout"] = reading.seconds(timeout, "default_timeout_microseconds")
    settings["allow_timeout_override"] = bool(policy.get("allow_timeout_override", False))
    size = whole(policy.get("max_queue_size", 0), "max_queue_size", reading.where)
    if size:
        settings["max_queue_size"] = size
    if policy.get("timeout_action") in ("DELAY", 1):
        reading.ignored.append("default_queue_policy.timeout_action: DELAY")


def _read_sequences(batching: Json | None, reading: _Reading) -> None:
    if batching is None:
        return
    idle = batching.get("max_sequence_idle_microseconds")
    if idle is not None:
        seconds = reading.seconds(idle, "max_sequence_idle_microseconds")
        reading.settings["sequence_idle_timeout"] = seconds
    controls = {}
    for each in batching.get("control_input", ()):
        for control in each.get("control", ()):
            kind = _CONTROLS.get(control.get("kind", "CONTROL_SEQUENCE_START"))
            if kind is None:
                raise OptionError(
                    f"{reading.where}: control input {each.get('name')!r} has the unknown kind "
                    f"{control.get('kind')!r}"
                )
            controls[str(each.get("name"))] = kind
            for name in ("int32_false_true", "fp32_false_true", "bool_false_true"):
                if control.get(name) not in (None, [0, 1], [False, True]):
                    raise OptionError(
                        f"{reading.where}: control input {each.get('name')!r} has the {name} "
                        f"{control[name]}\nthe server fills in 0 for false and 1 for true"
                    )
    if controls:
        reading.settings["sequence_controls"] = controls
    states = [
        {"input": each.get("input_name"), "output": each.get("output_name")}
        for each in batching.get("state", ())
    ]
    if states:
        reading.settings["sequence_states"] = states
    for each in batching.get("state", ()):
        if any("data_file" in start for start in each.get("initial_state", ())):
            raise OptionError(
                f"{reading.where}: state {each.get('input_name')!r} starts from a data_file, "
                "which is not read\nstart it from zero_data, or give `initial` in sequence_states"
            )
    reading.ignore(batching, ("iterative_sequence",), "sequence_batching.")


def _read_engine(config: Json, reading: _Reading) -> None:
    groups = config.get("instance_group", ())
    counts = [whole(group.get("count", 1) or 1, "count", reading.where) for group in groups]
    if counts:
        reading.settings["instances"] = sum(counts)
    providers = []
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    for kind in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
        for each in accelerators.get(kind, ()):
            providers.append(_ACCELERATORS.get(str(each.get("name")), str(each.get("name"))))
    kinds = {group.get("kind") for group in groups}
    if "KIND_GPU" in kinds:
        providers.append("CUDAExecutionProvider")
    present = [name for name in dict.fromkeys(providers) if name in available()]
    reading.ignored += [
        f"{name} (not on this machine)" for name in providers if name not in present
    ]
    if present or kinds == {"KIND_CPU"}:
        reading.settings["providers"] = [*present, "CPUExecutionProvider"]
    reading.ignore(config.get("optimization", {}), ("cuda", "graph"), "optimization.")
    for group in groups:
        reading.ignore(group, ("rate_limiter",), "instance_group.")
    reading.ignore(config.get("parameters", {}), _ENGINE_PARAMETERS, "parameters.")
    threads = config.get("parameters", {}).get("intra_op_thread_count")
    if threads is not None:
        value = threads.get("string_value", "") if isinstance(threads, Mapping) else threads
        reading.settings["threads"] = whole(value, "intra_op_thread_count", reading.where)


def _read_warm_up(config: Json, reading: _Reading) -> None:
    samples = config.get("model_warmup", ())
    if samples:
        reading.settings["warm_up"] = True
    for sample in samples:
        files = [each for each in sample.get("inputs", {}).values() if "input_data_file" in each]
        reading.ignored += ["model_warmup.input_data_file"] * bool(files)
