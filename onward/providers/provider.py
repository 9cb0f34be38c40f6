"""The two seams of execution: a Provider compiles a part of a model, an Executable runs it.

A tensor that crosses this seam is whatever the engine holds (numpy array, torch.Tensor, OrtValue):
anything that speaks DLPack, so that the next engine reads the same memory. Sequences are lists and
an empty optional is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import onnx_ir as ir


class Executable(Protocol):
    """A compiled part: tensors in the order of its inputs, tensors in the order of its outputs."""

    @property
    def takes_numpy(self) -> bool:
        """Whether its tensors must come as numpy, because its engine knows no other."""
        ...

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]: ...

    def to_numpy(self, tensor: Any, dtype: Any) -> Any:
        """One of its results as numpy."""
        ...


class Provider(Protocol):
    """An engine that can run some operators."""

    @property
    def name(self) -> str: ...

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether this engine can run the node: its operator, opset and types."""
        ...

    def compile(self, model: ir.Model) -> Executable:
        """Make a part, as a model of its own, ready to run."""
        ...


@runtime_checkable
class KeepsOnDevice(Protocol):
    """An executable that can leave its results with the caller, on the device they are on."""

    def to_dlpack(self, tensor: Any) -> Any:
        """One of its results as a tensor that speaks DLPack and that later runs leave alone."""
        ...


@runtime_checkable
class TakesWhole(Protocol):
    """A provider that is shown the whole model before it is asked about each node."""

    def takes(self, model: ir.Model) -> bool:
        """Whether it will compile all of this model as one part."""
        ...
