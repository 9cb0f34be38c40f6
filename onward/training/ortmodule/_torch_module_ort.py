"""TorchModuleORT: the wrapped module, and what runs its calls."""

from __future__ import annotations

from typing import Any

from onward.training.ortmodule._graph_execution_manager_factory import GraphExecutionManagerFactory


class TorchModuleORT:
    """What an ORTModule has as `_torch_module`."""

    def __init__(self, module: Any, managers: GraphExecutionManagerFactory) -> None:
        self._original_module = self._flattened_module = self.module = module
        self._execution_manager = managers

    def is_training(self) -> bool:
        return bool(self.module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._execution_manager(self.is_training()).forward(*args, **kwargs)
