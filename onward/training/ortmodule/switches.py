"""The ORTMODULE_* environment variables, which the peer's users set outside their scripts.

In addition to the command line, this is the one module that reads the environment: under
onward.compat a script runs unchanged, and so do the variables that its users export for it.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

from onward.errors import OptionError
from onward.message_text import suggest_names
from onward.training.ortmodule._logger import LOGGER

# Variables that change nothing here, and why.
WITHOUT_EFFECT = {
    "ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT": "torch.utils.checkpoint always works",
    "ORTMODULE_ATEN_SDPA_FALLBACK": "attention is captured as one operator",
    "ORTMODULE_CACHE_DIR": "captured graphs are not kept between processes",
    "ORTMODULE_CONV_ALGO_SEARCH": "it belongs to onnxruntime's CUDA kernels",
    "ORTMODULE_DEEPSPEED_ZERO_STAGE3_SUPPORT": "it belongs to the peer's engine",
    "ORTMODULE_ENABLE_COMPUTE_OPTIMIZER": "the graph is always optimised",
    "ORTMODULE_ENABLE_CUSTOM_AUTOGRAD": "a torch.autograd.Function always runs in PyTorch",
    "ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER": "padding is not removed yet",
    "ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": "it belongs to the peer's engine",
    "ORTMODULE_ENABLE_SPARSE_OPTIMIZER": "padding is not removed yet",
    "ORTMODULE_ENABLE_TUNING": "it belongs to onnxruntime's CUDA kernels",
    "ORTMODULE_MAX_TUNING_DURATION_MS": "it belongs to onnxruntime's CUDA kernels",
    "ORTMODULE_MEMORY_OPT_CONFIG": "a module recomputes only cheap values: use torch's checkpoint",
    "ORTMODULE_MEMORY_OPT_LEVEL": "a module recomputes only cheap values: use torch's checkpoint",
    "ORTMODULE_MEMORY_OPT_PROBE_RECOMPUTE_LEVEL": "activations are not recomputed",
    "ORTMODULE_PRINT_INPUT_DENSITY": "inputs are not inspected",
    "ORTMODULE_PRINT_MEMORY_STATS": "use onward.measure_memory",
    "ORTMODULE_SKIPPED_AUTOGRAD_FUNCTIONS": "functions are identified by their classes",
    "ORTMODULE_TRITON_DEBUG": "Triton kernels are Inductor's own",
    "ORTMODULE_TUNING_RESULTS_PATH": "it belongs to onnxruntime's CUDA kernels",
    "ORTMODULE_USE_EFFICIENT_ATTENTION": "attention is captured as one operator",
    "ORTMODULE_USE_FLASH_ATTENTION": "attention is captured as one operator",
    "ORTMODULE_USE_TRITON": "Triton kernels are Inductor's own",
}
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_said: set[str] = set()


def read_text(name: str, default: str) -> str:
    """A variable, or the default where it is not set."""
    return os.environ.get(name, default)


def read_choice(name: str, default: Any, choices: dict[str, Any]) -> Any:
    """One of several values, or several of them joined by "|", by their names."""
    given = os.environ.get(name)
    if given is None:
        return default
    found = None
    for part in given.split("|"):
        if part.strip() not in choices:
            hint = suggest_names(part.strip(), choices)
            raise OptionError(f"{name} has no value {part.strip()!r}\n{hint}")
        value = choices[part.strip()]
        found = value if found is None else found | value
    return found


def read_flag(name: str, default: bool) -> bool:
    """A variable that is true or false."""
    given = os.environ.get(name, str(default)).lower()
    if given not in (*_TRUE, *_FALSE):
        raise OptionError(f"{name} must be true or false, not {given!r}\nset it to 1 or 0")
    return given in _TRUE


def read_number(name: str, default: int) -> int:
    """A variable that is a whole number."""
    given = os.environ.get(name, str(default))
    try:
        return int(given)
    except ValueError:
        raise OptionError(f"{name} must be a whole number, not {given!r}") from None


def defined_from_envvar(name: str, default_value: Any, warn: bool = True) -> Any:
    """A variable as a value of the default's type; the default, with a warning, if it is none."""
    given = os.environ.get(name)
    if given is None:
        return default_value
    try:
        return type(default_value)(given)
    except (TypeError, ValueError) as error:
        if warn:
            warnings.warn(f"Unable to overwrite constant {name!r} due to {error!r}.", stacklevel=2)
        return default_value


def report_unused_switches() -> None:
    """Say, once for each, which variables are set and change nothing."""
    for name, reason in WITHOUT_EFFECT.items():
        if name in os.environ and name not in _said:
            _said.add(name)
            LOGGER.warning("%s has no effect: %s", name, reason)
