"""The configuration of a served model as clients read it: Triton's ModelConfig, completed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onward.serving.core import Json
from onward.serving.models.model_config import TYPES
from onward.serving.requests import TensorSpec
from onward.serving.settings import ModelSettings

_TYPE_NAMES = {datatype: name for name, datatype in TYPES.items()}
ONNX, PYTHON, ENSEMBLE = "onnxruntime_onnx", "python", "ensemble"  # platforms
_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")  # one of them
_BACKENDS = {ONNX: "onnxruntime", PYTHON: "python"}


def completed_config(
    name: str,
    platform: str,
    given: Mapping[str, Any] | None,
    settings: ModelSettings,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    batching: Any,
    filename: str = "",
) -> Json:
    """Every field that Triton's clients look at, whether config.pbtxt has it or not.

    dims leave the batch axis out where max_batch_size is above 0.
    """
    max_size = int(getattr(batching, "max_size", 0))
    axes: Mapping[str, int] = getattr(batching, "axes", {}) if max_size else {}
    config: Json = {
        "name": name,
        "platform": platform if platform != PYTHON else "",
        "backend": _BACKENDS.get(platform, ""),
        "runtime": "",
        "version_policy": settings.version_policy,
        "max_batch_size": max_size,
        "input": [_input(spec, max_size, axes) for spec in inputs],
        "output": [_output(spec, max_size, axes, settings.labels) for spec in outputs],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "instance_group": [] if platform == ENSEMBLE else [_instance_group(name, settings)],
        "default_model_filename": filename,
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }
    if platform != ENSEMBLE and _keeps_sequences(settings):
        config["sequence_batching"] = _sequence_batching(settings)
    elif max_size > 1 and platform != ENSEMBLE:
        config["dynamic_batching"] = _dynamic_batching(settings)
    if settings.result_cache_bytes:
        config["response_cache"] = {"enable": True}
    return _keep_given(config, given or {})


def _keep_given(config: Json, given: Mapping[str, Any]) -> Json:
    """What was written down stays as it was, but for what the model says better."""
    decided = {"name", "platform", "backend", "max_batch_size", "input", "output"}
    kept = {key: value for key, value in given.items() if key not in decided}
    if any(each in given for each in _SCHEDULERS):
        config = {key: value for key, value in config.items() if key not in _SCHEDULERS}
    if "optimization" in kept:
        kept["optimization"] = {**config["optimization"], **kept["optimization"]}
    if "instance_group" in kept:
        [default] = config["instance_group"] or [{}]
        kept["instance_group"] = [{**default, **each} for each in kept["instance_group"]]
    declared = {each["name"]: each for each in (*given.get("input", ()), *given.get("output", ()))}
    for each in (*config["input"], *config["output"]):
        own = declared.get(each["name"], {})
        each.update({key: own[key] for key in ("reshape", "format") if key in own})
    return config | kept


def _input(spec: TensorSpec, max_size: int, axes: Mapping[str, int]) -> Json:
    return {
        "name": spec.name,
        "data_type": _TYPE_NAMES[spec.datatype],
        "format": "FORMAT_NONE",
        "dims": _dims(spec, max_size, axes),
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": spec.is_optional,
        "is_non_linear_format_io": False,
    }


def _output(
    spec: TensorSpec, max_size: int, axes: Mapping[str, int], labels: Mapping[str, str]
) -> Json:
    return {
        "name": spec.name,
        "data_type": _TYPE_NAMES[spec.datatype],
        "dims": _dims(spec, max_size, axes),
        "label_filename": labels.get(spec.name, ""),
        "is_shape_tensor": False,
        "is_non_linear_format_io": False,
    }


def _dims(spec: TensorSpec, max_size: int, axes: Mapping[str, int]) -> list[int]:
    if not max_size or spec.has_default:
        return list(spec.shape)
    batch = axes.get(spec.name, 0)
    return [size for axis, size in enumerate(spec.shape) if axis != batch]


def _instance_group(name: str, settings: ModelSettings) -> Json:
    count = settings.workers or (settings.instances if settings.instances != "auto" else 1)
    providers = settings.providers if isinstance(settings.providers, list) else []
    on_gpu = any(each.startswith(("CUDA", "Tensorrt", "ROCM")) for each in providers)
    return {
        "name": name,
        "kind": "KIND_GPU" if on_gpu else "KIND_CPU",
        "count": count,
        "gpus": [0] if on_gpu else [],
        "secondary_devices": [],
        "profile": [],
        "passive": False,
        "host_policy": "",
    }


def _dynamic_batching(settings: ModelSettings) -> Json:
    delay = settings.batch_delay if settings.batch_delay != "auto" else 0.0
    return {
        "preferred_batch_size": settings.preferred_batch_sizes,
        "max_queue_delay_microseconds": round(delay * 1e6),
        "preserve_ordering": False,
        "priority_levels": settings.priority_levels,
        "default_priority_level": settings.default_priority,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": round((settings.timeout or 0) * 1e6),
            "allow_timeout_override": settings.allow_timeout_override,
            "max_queue_size": settings.max_queue_size,
        },
        "priority_queue_policy": {},
    }


def _keeps_sequences(settings: ModelSettings) -> bool:
    return bool(settings.sequence_states or settings.sequence_controls)


def _sequence_batching(settings: ModelSettings) -> Json:
    idle = round(settings.sequence_idle_timeout * 1e6)
    return {"max_sequence_idle_microseconds": idle, "direct": {}, "control_input": [], "state": []}
