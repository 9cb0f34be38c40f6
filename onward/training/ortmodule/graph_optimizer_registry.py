"""register_graph_optimizer: functions that rewrite the forward graphs of ORTModule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import onnx_ir as ir

from onward.pytorch.ortmodule.call_checks import devices_of
from onward.training.ortmodule._logger import LOGGER

Optimizer = TypeVar("Optimizer", bound=Callable[..., Any])


class GraphOptimizerRegistry:
    """The functions that were registered, by name: (function, devices)."""

    OPTIMIZERS: ClassVar[dict[str, tuple[Callable[..., Any], tuple[str, ...]]]] = {}


def register_graph_optimizer(devices: Any = None) -> Callable[[Optimizer], Optimizer]:
    """Register a function that changes an onnx.GraphProto in place, for devices such as "cuda".

    It is called with each captured forward graph, before its gradient is derived.
    """
    wanted = tuple(devices.split("|")) if isinstance(devices, str) else tuple(devices or ())

    def register(optimizer: Optimizer) -> Optimizer:
        GraphOptimizerRegistry.OPTIMIZERS[optimizer.__name__] = (optimizer, wanted)
        return optimizer

    return register


def call_graph_optimizers(module: Any, model: ir.Model) -> ir.Model | None:
    """The model after the registered functions for the module's device; None: there are none."""
    devices = {device.type for device in devices_of(module)} or {"cpu"}
    chosen = {
        name: optimizer
        for name, (optimizer, wanted) in GraphOptimizerRegistry.OPTIMIZERS.items()
        if not wanted or devices & set(wanted)
    }
    if not chosen:
        return None
    proto = ir.to_proto(model)
    for name, optimizer in chosen.items():
        LOGGER.info("calling the graph optimizer %s", name)
        optimizer(proto.graph)
    return ir.from_proto(proto)
