"""ONNXModels: the graphs of the last call, as ONNX models."""

from __future__ import annotations

from typing import Any

from onward.pytorch.captured_program import CapturedProgram
from onward.pytorch.ortmodule import program_graphs


class ONNXModels:
    """The graphs of a program; None before the first call, and where PyTorch ran it."""

    def __init__(self, program: CapturedProgram | None, opset: int) -> None:
        self._program, self._opset = program, opset

    @property
    def exported_model(self) -> Any:
        """The captured model, in ONNX_OPSET_VERSION if it fits."""
        if self._program is None:
            return None
        return program_graphs.exported_model(self._program, self._opset)

    @property
    def optimized_model(self) -> Any:
        """The captured model with its gradients, in ONNX_OPSET_VERSION if it fits."""
        if self._program is None:
            return None
        return program_graphs.optimized_model(self._program, self._opset)
