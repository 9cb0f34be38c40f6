"""GraphExecutionManagerFactory: one execution manager for training, and one for inference."""

from __future__ import annotations

from onward.pytorch.captured_module import CapturedModule
from onward.training.ortmodule._fallback import _FallbackManager
from onward.training.ortmodule._graph_execution_manager import GraphExecutionManager
from onward.training.ortmodule.options import DebugOptions, _RuntimeOptions


class GraphExecutionManagerFactory:
    """Returns the execution manager of a mode."""

    def __init__(
        self,
        captured: CapturedModule,
        debug_options: DebugOptions,
        runtime_options: _RuntimeOptions,
        fallback_manager: _FallbackManager,
    ) -> None:
        settings = captured, debug_options, runtime_options, fallback_manager
        self._training_manager = GraphExecutionManager(*settings, is_training=True)
        self._inference_manager = GraphExecutionManager(*settings, is_training=False)

    def __call__(self, is_training: bool) -> GraphExecutionManager:
        return self._training_manager if is_training else self._inference_manager
