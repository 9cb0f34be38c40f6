"""register_graph_optimizer: functions that the peer's engine calls on its own graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from onward.training.ortmodule._logger import LOGGER

Optimizer = TypeVar("Optimizer", bound=Callable[..., Any])


class GraphOptimizerRegistry:
    """The functions that were registered, by name: (function, devices)."""

    OPTIMIZERS: ClassVar[dict[str, tuple[Callable[..., Any], tuple[str, ...]]]] = {}


def register_graph_optimizer(devices: Any = None) -> Callable[[Optimizer], Optimizer]:
    """Register a function that rewrites the peer's graphs.

    It is kept, and not called: Onward's graphs have other operators. To rewrite them, write a pass
    (docs/passes.md).
    """
    wanted = (devices,) if isinstance(devices, str) else tuple(devices or ())

    def register(optimizer: Optimizer) -> Optimizer:
        GraphOptimizerRegistry.OPTIMIZERS[optimizer.__name__] = (optimizer, wanted)
        LOGGER.warning(
            "the graph optimizer %s is not called: Onward's graphs have other operators",
            optimizer.__name__,
        )
        return optimizer

    return register
