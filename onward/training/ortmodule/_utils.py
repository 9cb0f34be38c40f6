"""Small functions that scripts import from onnxruntime.training.ortmodule._utils."""

from __future__ import annotations

from onward.pytorch.ortmodule.device_names import (
    get_device_index,
    get_device_str,
    get_runtime_pytorch_version,
)
from onward.pytorch.ortmodule.random_states import get_random_states, set_random_states
from onward.training.ortmodule._fallback_exceptions import get_exception_as_string

__all__ = [
    "get_device_index",
    "get_device_str",
    "get_exception_as_string",
    "get_random_states",
    "get_runtime_pytorch_version",
    "set_random_states",
]
