"""Samplers for distributed training: onnxruntime.training.utils.data's names.

The names load, and torch with them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.training.utils.data import sampler as sampler
    from onward.training.utils.data.sampler import (
        LoadBalancingDistributedBatchSampler as LoadBalancingDistributedBatchSampler,
    )
    from onward.training.utils.data.sampler import (
        LoadBalancingDistributedSampler as LoadBalancingDistributedSampler,
    )

__all__ = ["LoadBalancingDistributedBatchSampler", "LoadBalancingDistributedSampler"]

if not TYPE_CHECKING:  # a type checker would take any name to exist

    def __getattr__(name: str) -> Any:
        if name == "sampler":
            return import_module(f"{__name__}.sampler")
        if name in __all__:
            return getattr(import_module(f"{__name__}.sampler"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "sampler"])
